"""One look at the device: battery, heat, shortage. Every field may be None, which means that nothing here tells."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

MOST_THERMAL_STATUS = 6
_SANE_TEMPERATURES_C = (-40.0, 150.0)  # a chip is dead above, and the coldest rated outdoor gear is not below


@dataclass(frozen=True)
class Reading:
    """What the device said at one moment.

    Args:
        battery_share: Charge, 0 to 1.
        is_plugged: Power comes from outside, whether or not the battery charges.
        is_low_power_mode: The user (or the system, for them) asked for less use of power.
        temperature_c: Of the hottest sensor that is a temperature of the device.
        thermal_status: The system's verdict on Android's scale: 0 none, 1 light, 2 moderate, 3 severe, 4 critical, 5 emergency, 6 shutdown.
        thermal_headroom: How near `severe` is: 1.0 is there, more is beyond.
        memory_pressure: Share of the last ten seconds in which something waited for memory, 0 to 1.
        memory_used_share: Of the control group's limit, what cannot be given back, 0 to 1.
        cpu_pressure: Share of the last ten seconds in which something waited for a CPU, 0 to 1.
        battery_power_w: What is drawn from the battery; None while it charges or is not used, because then it says nothing of the work.
    """

    battery_share: float | None = None
    is_plugged: bool | None = None
    is_low_power_mode: bool | None = None
    temperature_c: float | None = None
    thermal_status: int | None = None
    thermal_headroom: float | None = None
    memory_pressure: float | None = None
    memory_used_share: float | None = None
    cpu_pressure: float | None = None
    battery_power_w: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Only what is known, for logs and `--json`."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def tells_nothing(self) -> bool:
        """Whether no source had anything to say."""
        return not self.as_dict()


# Where two sources tell the same, the worse of them counts: each sees a part of the device.
_WORSE_IS_LESS = ("battery_share",)
_FIRST_COUNTS = ("is_plugged", "battery_power_w")


def merged(readings: Iterable[Reading]) -> Reading:
    """One reading of several: of each field the worst that is known, of the charger and its power the first."""
    known: dict[str, Any] = {}
    for reading in readings:
        for field in fields(Reading):
            value, name = getattr(reading, field.name), field.name
            if value is None:
                continue
            if name not in known:
                known[name] = value
            elif name not in _FIRST_COUNTS:
                known[name] = min(known[name], value) if name in _WORSE_IS_LESS else max(known[name], value)
    return Reading(**known)


def sane_share(value: float | None) -> float | None:
    """A share from 0 to 1, or None where it is none; gauges that show a little more than full are full."""
    if value is None or not math.isfinite(value) or not 0 <= value <= 1.1:
        return None
    return min(1.0, value)


def sane_temperature(value: float | None) -> float | None:
    """A temperature a device can have, or None. Exactly zero is what sensors show that are switched off."""
    low, high = _SANE_TEMPERATURES_C
    return None if value is None or not math.isfinite(value) or value == 0 or not low <= value <= high else value


def sane_power(value: float | None) -> float | None:
    """Watts a portable device can draw, whatever sign its driver gives them; None where it tells none."""
    return None if value is None or not math.isfinite(value) or not 0 < abs(value) <= 500 else abs(value)
