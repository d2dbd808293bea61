"""Linux: batteries and chargers of /sys/class/power_supply, and the power profile of ACPI.

Fields and units: Documentation/ABI/testing/sysfs-class-power of the kernel. Microwatts, microamperes, microvolts, microwatt hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from toolkit.power.kernel_files import folders, read_integer, read_text
from toolkit.power.reading import Reading, sane_power, sane_share

SUPPLIES = "sys/class/power_supply"
PROFILE = "sys/firmware/acpi/platform_profile"
_CHARGERS = ("Mains", "USB", "Wireless")
_ON_MAINS = {"charging": True, "full": True, "not charging": True, "discharging": False}  # "unknown" tells nothing


@dataclass(frozen=True)
class Battery:
    """One battery of the device. `full` and its kind of unit weigh it against others; None where it does not tell."""

    share: float | None
    status: str
    power_w: float | None
    full: tuple[str, int] | None


def read_battery(root: Path) -> Reading:
    """Charge of all batteries together, whether a charger is in, what they give, and whether the power profile is the low one."""
    batteries, chargers = _supplies(root)
    statuses = {_ON_MAINS.get(battery.status) for battery in batteries}
    if chargers and any(chargers):
        is_plugged: bool | None = True
    elif False in statuses:
        is_plugged = False  # a charger that is not listed, or too weak to be called one, leaves the battery to tell
    else:
        is_plugged = True if True in statuses else (False if chargers else None)
    powers = [battery.power_w for battery in batteries if battery.status == "discharging"]
    told = [power for power in powers if power is not None]
    profile = read_text(root / PROFILE)
    return Reading(
        battery_share=_together(batteries),
        is_plugged=is_plugged,
        is_low_power_mode=None if not profile else profile == "low-power",
        battery_power_w=sum(told) if told and len(told) == len(powers) else None,
    )


def _supplies(root: Path) -> tuple[list[Battery], list[bool]]:
    """The device's batteries, and for each charger that tells whether it is in."""
    batteries, chargers = [], []
    for folder in folders(root / SUPPLIES):
        kind = read_text(folder / "type")
        if read_text(folder / "scope") == "Device":
            continue  # a mouse's or a headset's own
        if kind == "Battery" and read_integer(folder / "present") != 0:
            batteries.append(_battery(folder))
        elif kind is not None and kind.startswith(_CHARGERS) and (online := read_integer(folder / "online")) is not None:
            chargers.append(online > 0)
    return batteries, chargers


def _battery(folder: Path) -> Battery:
    status = (read_text(folder / "status") or "unknown").lower()
    full = next(((kind, size) for kind in ("energy", "charge") if (size := read_integer(folder / f"{kind}_full"))), None)
    return Battery(_share(folder, full), status, _power_w(folder), full)


def _share(folder: Path, full: tuple[str, int] | None) -> float | None:
    capacity = read_integer(folder / "capacity")
    if capacity is not None:
        return sane_share(capacity / 100)
    if full is None or full[1] <= 0 or (now := read_integer(folder / f"{full[0]}_now")) is None:
        return None
    return sane_share(now / full[1])


def _power_w(folder: Path) -> float | None:
    """Drivers differ in the sign of what a battery gives, so only its size counts."""
    if (power := read_integer(folder / "power_now")) is not None:
        return sane_power(power / 1e6)
    current, voltage = read_integer(folder / "current_now"), read_integer(folder / "voltage_now")
    return None if current is None or voltage is None else sane_power(current * voltage / 1e12)


def _together(batteries: list[Battery]) -> float | None:
    """Weighed by what each holds when full; where that is not known of all in one unit, the emptiest."""
    shares = [battery.share for battery in batteries if battery.share is not None]
    if not shares:
        return None
    weights = [battery.full for battery in batteries if battery.share is not None]
    sizes = [weight[1] for weight in weights if weight is not None and weight[1] > 0]
    if len(sizes) < len(shares) or len({weight[0] for weight in weights if weight is not None}) > 1:
        return min(shares)
    return sum(share * size for share, size in zip(shares, sizes, strict=True)) / sum(sizes)
