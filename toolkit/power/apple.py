"""macOS and iOS: `NSProcessInfo`'s thermal state and low-power mode, and IOKit's battery (macOS), through the C libraries.

The Objective-C runtime is plain C, so ctypes is enough; where an app carries pyobjus (iOS under Kivy), that is asked instead, because an
app may be refused the loading of libraries by path.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from typing import Any, Protocol

from toolkit.power.reading import Reading, sane_share

# NSProcessInfoThermalState: nominal, fair, serious, critical. At "serious" Apple asks apps to use less of everything, as Android does
# at severe.
_THERMAL_STATUS = {0: 0, 1: 1, 2: 3, 3: 4}
_BATTERY_FULL, _BATTERY_CHARGING, _BATTERY_UNPLUGGED = 3, 2, 1  # UIDeviceBatteryState
_UTF8 = 0x08000100  # kCFStringEncodingUTF8
_INT = 9  # kCFNumberIntType


class ProcessInfo(Protocol):
    """What of `NSProcessInfo` is asked."""

    def thermal_state(self) -> int:
        """0 to 3."""

    def is_low_power_mode(self) -> bool:
        """Whether the user asked for it."""


def read_process_info(ask: Callable[[], ProcessInfo | None] | None = None) -> Reading:
    """Thermal state on Android's scale, and the low-power mode; nothing where there is no Objective-C."""
    try:
        info = (ask or process_info)()
        if info is None:
            return Reading()
        state = int(info.thermal_state())
        return Reading(thermal_status=_THERMAL_STATUS.get(state), is_low_power_mode=bool(info.is_low_power_mode()))
    except Exception:  # pyobjus and ctypes raise what they like; a device that does not tell is no failure
        return Reading()


def process_info() -> ProcessInfo | None:
    """`NSProcessInfo.processInfo`, by pyobjus where the app has it, else by the Objective-C runtime; None elsewhere."""
    try:
        from pyobjus import autoclass
    except ImportError:
        return _RuntimeProcessInfo() if ctypes.util.find_library("objc") else None
    return _PyobjusProcessInfo(autoclass("NSProcessInfo").processInfo())


class _PyobjusProcessInfo:
    """pyobjus shows what Objective-C declares as a property as an attribute, and the same as a method where it is older."""

    def __init__(self, info: Any) -> None:
        self._info = info

    def _value(self, name: str) -> int:
        value = getattr(self._info, name)
        return int(value() if callable(value) else value)

    def thermal_state(self) -> int:
        return self._value("thermalState")

    def is_low_power_mode(self) -> bool:
        return bool(self._value("isLowPowerModeEnabled"))


class _RuntimeProcessInfo:
    """By `objc_msgSend`, whose type has to be given anew for each kind of result."""

    def __init__(self, library: Any = None) -> None:
        self._library = library or ctypes.CDLL(ctypes.util.find_library("objc"))
        if library is None:
            ctypes.CDLL(ctypes.util.find_library("Foundation"))  # else the runtime does not know the class
        for name in ("objc_getClass", "sel_registerName"):
            function = getattr(self._library, name)
            function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
        kind = self._library.objc_getClass(b"NSProcessInfo")
        self._info = self._send(kind, b"processInfo", ctypes.c_void_p)

    def _send(self, target: Any, selector: bytes, result: Any) -> Any:
        prototype = ctypes.CFUNCTYPE(result, ctypes.c_void_p, ctypes.c_void_p)
        send = prototype(ctypes.cast(self._library.objc_msgSend, ctypes.c_void_p).value or 0)
        return send(target, self._library.sel_registerName(selector))

    def thermal_state(self) -> int:
        return int(self._send(self._info, b"thermalState", ctypes.c_long))

    def is_low_power_mode(self) -> bool:
        return bool(self._send(self._info, b"isLowPowerModeEnabled", ctypes.c_bool))


def read_ios_battery(device: Callable[[], Any] | None = None) -> Reading:
    """`UIDevice`'s battery through pyobjus; -1 and "unknown" are what the simulator and a fresh app see, and tell nothing."""
    try:
        found = (device or _ui_device)()
        if found is None:
            return Reading()
        state = int(found.batteryState)
        plugged = {_BATTERY_UNPLUGGED: False, _BATTERY_CHARGING: True, _BATTERY_FULL: True}.get(state)
        return Reading(battery_share=sane_share(float(found.batteryLevel)), is_plugged=plugged)
    except Exception:  # see read_process_info
        return Reading()


def _ui_device() -> Any | None:
    try:
        from pyobjus import autoclass
    except ImportError:
        return None
    device = autoclass("UIDevice").currentDevice()
    device.setBatteryMonitoringEnabled_(True)  # without it the level is always -1
    return device


def read_mac_battery(libraries: Callable[[], tuple[Any, Any] | None] | None = None) -> Reading:
    """Charge and charger by IOKit's power sources; nothing on a Mac without a battery."""
    try:
        found = (libraries or _frameworks)()
        return Reading() if found is None else _PowerSources(*found).read()
    except Exception:  # see read_process_info
        return Reading()


def _frameworks() -> tuple[Any, Any] | None:
    names = [ctypes.util.find_library(name) for name in ("IOKit", "CoreFoundation")]
    return None if None in names else (ctypes.CDLL(names[0]), ctypes.CDLL(names[1]))


class _PowerSources:
    """IOPSCopyPowerSourcesInfo and what Core Foundation needs to read it."""

    def __init__(self, iokit: Any, foundation: Any) -> None:
        self._iokit, self._foundation = iokit, foundation
        pointer, index = ctypes.c_void_p, ctypes.c_long
        for library, name, result, arguments in (
            (iokit, "IOPSCopyPowerSourcesInfo", pointer, []),
            (iokit, "IOPSCopyPowerSourcesList", pointer, [pointer]),
            (iokit, "IOPSGetPowerSourceDescription", pointer, [pointer, pointer]),
            (iokit, "IOPSGetProvidingPowerSourceType", pointer, [pointer]),
            (foundation, "CFArrayGetCount", index, [pointer]),
            (foundation, "CFArrayGetValueAtIndex", pointer, [pointer, index]),
            (foundation, "CFDictionaryGetValue", pointer, [pointer, pointer]),
            (foundation, "CFNumberGetValue", ctypes.c_bool, [pointer, index, pointer]),
            (foundation, "CFStringCreateWithCString", pointer, [pointer, ctypes.c_char_p, ctypes.c_uint32]),
            (foundation, "CFStringGetCString", ctypes.c_bool, [pointer, ctypes.c_char_p, index, ctypes.c_uint32]),
            (foundation, "CFRelease", None, [pointer]),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments

    def read(self) -> Reading:
        info = self._iokit.IOPSCopyPowerSourcesInfo()
        if not info:
            return Reading()
        sources = self._iokit.IOPSCopyPowerSourcesList(info)
        try:
            count = self._foundation.CFArrayGetCount(sources) if sources else 0
            shares = [self._share(info, self._foundation.CFArrayGetValueAtIndex(sources, index)) for index in range(count)]
            told = [share for share in shares if share is not None]
            provider = self._text(self._iokit.IOPSGetProvidingPowerSourceType(info))
            return Reading(battery_share=min(told, default=None), is_plugged=provider == "AC Power" if told and provider else None)
        finally:
            for owned in (sources, info):
                if owned:
                    self._foundation.CFRelease(owned)

    def _share(self, info: Any, source: Any) -> float | None:
        description = self._iokit.IOPSGetPowerSourceDescription(info, source)
        now, full = (self._number(description, key) for key in (b"Current Capacity", b"Max Capacity"))
        return sane_share(now / full) if now is not None and full else None

    def _number(self, description: Any, key: bytes) -> int | None:
        name = self._foundation.CFStringCreateWithCString(None, key, _UTF8)
        try:
            value = self._foundation.CFDictionaryGetValue(description, name) if description else None
        finally:
            self._foundation.CFRelease(name)
        number = ctypes.c_int(0)
        return number.value if value and self._foundation.CFNumberGetValue(value, _INT, ctypes.byref(number)) else None

    def _text(self, value: Any) -> str:
        buffer = ctypes.create_string_buffer(64)
        is_told = value and self._foundation.CFStringGetCString(value, buffer, 64, _UTF8)
        return buffer.value.decode("utf-8", errors="replace") if is_told else ""
