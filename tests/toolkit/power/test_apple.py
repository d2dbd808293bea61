"""macOS and iOS: by stand-ins for pyobjus, and by C functions of our own where ctypes calls them."""

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any

import pytest

from toolkit.power.apple import _RuntimeProcessInfo, process_info, read_ios_battery, read_mac_battery, read_process_info
from toolkit.power.reading import Reading


class Info:
    def __init__(self, state: int, is_low: bool) -> None:
        self._state, self._is_low = state, is_low

    def thermal_state(self) -> int:
        return self._state

    def is_low_power_mode(self) -> bool:
        return self._is_low


@pytest.mark.parametrize(("state", "status"), [(0, 0), (1, 1), (2, 3), (3, 4), (9, None)])
def test_apples_four_states_on_androids_scale(state: int, status: int | None) -> None:
    assert read_process_info(lambda: Info(state, True)) == Reading(thermal_status=status, is_low_power_mode=True)


def test_nothing_where_there_is_no_objective_c() -> None:
    def broken() -> Info:
        raise OSError("no libobjc")

    assert read_process_info(lambda: None).tells_nothing
    assert read_process_info(broken).tells_nothing


@pytest.mark.parametrize("state", [2, lambda: 2], ids=["property", "method"])
def test_pyobjus_is_asked_where_the_app_has_it(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class NSProcessInfo:
        @staticmethod
        def processInfo() -> Any:
            return types.SimpleNamespace(thermalState=state, isLowPowerModeEnabled=lambda: 0)

    module = types.ModuleType("pyobjus")
    module.autoclass = {"NSProcessInfo": NSProcessInfo}.__getitem__  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyobjus", module)
    assert read_process_info(process_info) == Reading(thermal_status=3, is_low_power_mode=False)


class ObjectiveC:
    """A runtime of one class: selectors are numbers, messages are answered by a C function."""

    def __init__(self) -> None:
        self.selectors: list[bytes] = []
        self.objc_getClass = self._function(lambda name: 7 if name == b"NSProcessInfo" else 0)
        self.sel_registerName = self._function(self._register)
        self.objc_msgSend = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)(self._send)

    @staticmethod
    def _function(work: Any) -> Any:
        class Function:
            restype: Any = None
            argtypes: Any = None

            def __call__(self, *arguments: Any) -> Any:
                return work(*arguments)

        return Function()

    def _register(self, name: bytes) -> int:
        self.selectors.append(name)
        return len(self.selectors)

    def _send(self, target: int, selector: int) -> int:
        return {b"processInfo": 11, b"thermalState": 1, b"isLowPowerModeEnabled": 1}[self.selectors[selector - 1]]


def test_the_runtime_is_asked_by_messages() -> None:
    info = _RuntimeProcessInfo(ObjectiveC())
    assert read_process_info(lambda: info) == Reading(thermal_status=1, is_low_power_mode=True)


class Device:
    def __init__(self, level: Any, state: int) -> None:
        self.batteryLevel, self.batteryState = level, state


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (Device(0.42, 1), Reading(battery_share=0.42, is_plugged=False)),
        (Device(1.0, 3), Reading(battery_share=1.0, is_plugged=True)),
        (Device(-1.0, 0), Reading()),  # the simulator
        (Device("?", 2), Reading()),
        (None, Reading()),
    ],
)
def test_the_battery_of_an_iphone(device: Device | None, expected: Reading) -> None:
    assert read_ios_battery(lambda: device) == expected


class Function:
    """A C function that a test writes; ctypes lets its types be set."""

    restype: Any = None
    argtypes: Any = None

    def __init__(self, work: Any) -> None:
        self._work = work

    def __call__(self, *arguments: Any) -> Any:
        return self._work(*arguments)


class Frameworks:
    """IOKit and Core Foundation of one battery; `released` is what was given back."""

    def __init__(self, battery: dict[bytes, int] | None, provider: bytes = b"Battery Power") -> None:
        self.battery, self.provider, self.released = battery, provider, list[Any]()
        self.IOPSCopyPowerSourcesInfo = Function(lambda: "info")
        self.IOPSCopyPowerSourcesList = Function(lambda info: "list")
        self.IOPSGetPowerSourceDescription = Function(lambda info, source: "description")
        self.IOPSGetProvidingPowerSourceType = Function(lambda info: "provider")
        self.CFArrayGetCount = Function(lambda array: 0 if battery is None else 1)
        self.CFArrayGetValueAtIndex = Function(lambda array, index: "source")
        self.CFStringCreateWithCString = Function(lambda nothing, text, encoding: text)
        self.CFDictionaryGetValue = Function(lambda description, name: (battery or {}).get(name))
        self.CFNumberGetValue = Function(self._number)
        self.CFStringGetCString = Function(self._string)
        self.CFRelease = Function(self.released.append)

    @staticmethod
    def _number(value: int, kind: int, out: Any) -> bool:
        out._obj.value = value
        return True

    def _string(self, value: Any, buffer: Any, size: int, encoding: int) -> bool:
        buffer.value = self.provider
        return True


CHARGE = {b"Current Capacity": 63, b"Max Capacity": 100}


@pytest.mark.parametrize(("provider", "is_plugged"), [(b"Battery Power", False), (b"AC Power", True)])
def test_the_battery_of_a_macbook(provider: bytes, is_plugged: bool) -> None:
    libraries = Frameworks(CHARGE, provider)
    assert read_mac_battery(lambda: (libraries, libraries)) == Reading(battery_share=0.63, is_plugged=is_plugged)
    assert libraries.released == [b"Current Capacity", b"Max Capacity", "list", "info"]


@pytest.mark.parametrize("battery", [None, {}, {b"Current Capacity": 5}, {b"Current Capacity": 5, b"Max Capacity": 0}])
def test_a_mac_without_one_tells_nothing(battery: dict[bytes, int] | None) -> None:
    libraries = Frameworks(battery)
    assert read_mac_battery(lambda: (libraries, libraries)).tells_nothing


def test_nothing_where_there_is_no_iokit() -> None:
    assert read_mac_battery(lambda: None).tells_nothing
