"""Linux: the hottest of /sys/class/thermal, in degrees Celsius."""

from __future__ import annotations

from pathlib import Path

from toolkit.power.kernel_files import folders, read_integer, read_text
from toolkit.power.reading import Reading, sane_temperature

ZONES = "sys/class/thermal"
# Zones of Qualcomm's battery guard hold volts, amperes and charge, not degrees.
_NO_TEMPERATURE = ("vbat", "ibat", "bcl")
_CHARGE_ZONE = "soc"  # state of charge there; systems on chip are called "soc-thermal" and the like
_LEAST_MILLI = 1000  # the interface says millidegrees; some drivers give degrees, and none that is awake is below 1 °C in millidegrees


def read_thermal(root: Path) -> Reading:
    """The hottest zone that is a temperature at all; one broken sensor neither hides nor invents heat."""
    told = (zone_temperature_c(folder) for folder in folders(root / ZONES, "thermal_zone"))
    return Reading(temperature_c=max((value for value in told if value is not None), default=None))


def zone_temperature_c(folder: Path) -> float | None:
    """One zone's temperature; None for what is switched off, broken or no temperature."""
    kind = (read_text(folder / "type") or "").lower()
    if kind == _CHARGE_ZONE or any(word in kind for word in _NO_TEMPERATURE) or read_text(folder / "mode") == "disabled":
        return None
    value = read_integer(folder / "temp")
    if value is None:
        return None
    return sane_temperature(value / 1000 if abs(value) >= _LEAST_MILLI else float(value))
