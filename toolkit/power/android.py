"""Android: battery, thermal status and headroom, power-save mode, asked of Java through pyjnius.

Vendors differ: the current of the battery comes in micro- or milliamperes and with either sign, a property may answer Integer.MIN_VALUE
or zero, and `getThermalHeadroom` answers NaN when it is asked more than about once a second.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from toolkit.power.reading import MOST_THERMAL_STATUS, Reading, sane_power, sane_share, sane_temperature

_CAPACITY, _CURRENT_NOW = 4, 2  # BatteryManager.BATTERY_PROPERTY_*
_HEADROOM_EVERY_S = 1.1  # a little more than the second the system allows
_HEADROOM_COUNTS_FOR_S = 10.0  # the system's own forecasts are for that long
_LEAST_MICROAMPERES = 20_000  # a phone that is awake draws more than 20 mA, and none draws 20 A: below it are milliamperes


class AndroidReader:
    """Keeps the last headroom, because the system tells it at most once a second.

    Java attaches each thread that asks it, and ends the app when such a thread ends without being detached. Whose thread asks here is not
    known, and one of Java's own must not be detached, so every look is taken on a thread of its own, which is.
    """

    def __init__(
        self, context: Callable[[], Any | None], *, clock: Callable[[], float] = time.monotonic, longest_look_s: float = 5.0
    ) -> None:
        """`context` returns the app's Android context, or None outside of an app; a look that takes longer tells nothing."""
        self._context, self._clock, self._longest_look_s = context, clock, longest_look_s
        self._thread: threading.Thread | None = None
        self._headroom: float | None = None
        self._asked_at = self._told_at = -math.inf

    def __call__(self) -> Reading:
        """What the system tells now."""
        told: list[Reading] = []

        def look() -> None:
            try:
                told.append(self._look())
            finally:
                _detach()

        if self._thread is not None and self._thread.is_alive():
            return Reading()  # the look before still waits for the system
        self._thread = threading.Thread(target=look, name="android-reading", daemon=True)
        self._thread.start()
        self._thread.join(self._longest_look_s)
        return told[0] if told else Reading()

    def _look(self) -> Reading:
        """Whatever one service refuses, the others are asked."""
        try:
            context = self._context()
        except Exception:  # pyjnius raises its own exceptions, before and after an app's end
            return Reading()
        if context is None:
            return Reading()
        power, manager = _service(context, "power"), _service(context, "batterymanager")
        battery = _told(lambda: context.registerReceiver(None, _battery_filter()))
        plugged = _integer(lambda: battery.getIntExtra("plugged", -1))
        tenths = _integer(lambda: battery.getIntExtra("temperature", 0))
        is_plugged = None if plugged is None or plugged < 0 else plugged > 0
        return Reading(
            battery_share=_percent(_integer(lambda: manager.getIntProperty(_CAPACITY))),
            is_plugged=is_plugged,
            is_low_power_mode=_flag(lambda: power.isPowerSaveMode()),
            temperature_c=None if tenths is None else sane_temperature(tenths / 10),
            thermal_status=_status(_integer(lambda: power.getCurrentThermalStatus())),
            thermal_headroom=self._ask_headroom(power),
            battery_power_w=None if is_plugged is not False else _power_w(manager, battery),
        )

    def _ask_headroom(self, power: Any) -> float | None:
        now = self._clock()
        if power is not None and now - self._asked_at >= _HEADROOM_EVERY_S:
            self._asked_at = now
            value = _told(lambda: float(power.getThermalHeadroom(0)))
            if isinstance(value, float) and math.isfinite(value) and value >= 0:
                self._headroom, self._told_at = value, now
        return self._headroom if now - self._told_at <= _HEADROOM_COUNTS_FOR_S else None


def _detach() -> None:
    try:
        from jnius import detach
    except ImportError:
        return
    detach()


def _service(context: Any, name: str) -> Any:
    return _told(lambda: context.getSystemService(name))


def _battery_filter() -> Any:
    from jnius import autoclass

    return autoclass("android.content.IntentFilter")("android.intent.action.BATTERY_CHANGED")


def _told(ask: Callable[[], Any]) -> Any:
    """What a call returns, or None when what it asks is not there, in this version of Android or at all, or refuses."""
    try:
        return ask()
    except Exception:  # JavaException, AttributeError on a None, a missing method
        return None


def _integer(ask: Callable[[], Any]) -> int | None:
    value = _told(ask)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 - 1 else None


def _flag(ask: Callable[[], Any]) -> bool | None:
    value = _told(ask)
    return None if value is None else bool(value)


def _percent(value: int | None) -> float | None:
    return None if value is None else sane_share(value / 100)


def _status(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= MOST_THERMAL_STATUS else None


def _power_w(manager: Any, battery: Any) -> float | None:
    """Current times voltage, the current's sign ignored and its unit guessed by its size."""
    current = _integer(lambda: manager.getIntProperty(_CURRENT_NOW))
    millivolts = _integer(lambda: battery.getIntExtra("voltage", 0))
    if not current or not millivolts or not 1000 <= millivolts <= 30_000:
        return None
    amperes = abs(current) / (1e6 if abs(current) >= _LEAST_MICROAMPERES else 1e3)
    return sane_power(amperes * millivolts / 1000)
