"""Rows of the governor's table: what holds, how it lets go, and how it is said to people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from toolkit.power.reading import Reading


class GovernorState(StrEnum):
    """How much the engine may do. `severity` orders them."""

    FULL = "full"  # everything
    ECONOMY = "economy"  # in turns with pauses, shorter answers
    PAUSE = "pause"  # nothing for now; what was said is kept, and the answer goes on later
    STOP = "stop"  # the answer ends, the weights are freed

    @property
    def severity(self) -> int:
        """0 for FULL to 3 for STOP."""
        return list(GovernorState).index(self)


# A condition's key in the table, the field of `Reading` it looks at, and on which side of its limit it holds.
Side = Literal["below", "at least"]
CONDITIONS: dict[str, tuple[str, Side]] = {
    "battery_below": ("battery_share", "below"),
    "temperature_c_at_least": ("temperature_c", "at least"),
    "thermal_status_at_least": ("thermal_status", "at least"),
    "thermal_headroom_at_least": ("thermal_headroom", "at least"),
    "memory_pressure_at_least": ("memory_pressure", "at least"),
    "memory_used_share_at_least": ("memory_used_share", "at least"),
}
_NAMES = {
    "battery_share": "battery",
    "temperature_c": "temperature",
    "thermal_status": "thermal status",
    "thermal_headroom": "thermal headroom",
    "memory_pressure": "time spent waiting for memory",
    "memory_used_share": "memory of the control group",
}
_PERCENT = ("battery_share", "memory_pressure", "memory_used_share")


@dataclass(frozen=True)
class Condition:
    """One figure and its limit.

    Args:
        field: Of `Reading`.
        side: "below" the limit, or "at least" it.
        limit: In the field's unit.
        margin: How far the figure has to come back behind the limit once this held.
    """

    field: str
    side: Side
    limit: float
    margin: float = 0.0

    def holds(self, reading: Reading, *, was_held: bool) -> bool | None:
        """Whether it does; None where the device does not tell."""
        value = getattr(reading, self.field)
        if value is None:
            return None
        if self.side == "below":
            return bool(value < self.limit or (was_held and value < self.limit + self.margin))
        return bool(value >= self.limit or (was_held and value > self.limit - self.margin))

    def describe(self, reading: Reading) -> str:
        """`battery 18 %, below 20 %`."""
        return f"{_NAMES[self.field]} {_shown(self.field, getattr(reading, self.field))}, {self.side} {_shown(self.field, self.limit)}"


def _shown(field: str, value: float) -> str:
    if field in _PERCENT:
        return f"{100 * value:.3g} %"
    return f"{value:.4g} °C" if field == "temperature_c" else f"{value:.3g}"


@dataclass(frozen=True)
class Row:
    """A level and what asks for it.

    Args:
        level: ECONOMY, PAUSE or STOP.
        conditions: All must hold.
        unplugged_only: Only while the device is known to run on its battery.
        low_power_mode: Only while the user asks for less use of power.
        duty_share: Of an ECONOMY row: instead of the one of its level.
    """

    level: GovernorState
    conditions: tuple[Condition, ...] = ()
    unplugged_only: bool = False
    low_power_mode: bool = False
    duty_share: float | None = None

    def holds(self, reading: Reading, *, was_held: bool) -> bool | None:
        """Whether all of it does; None when that depends on what the device does not tell."""
        verdicts: list[bool | None] = [condition.holds(reading, was_held=was_held) for condition in self.conditions]
        if self.unplugged_only:
            verdicts.append(None if reading.is_plugged is None else not reading.is_plugged)
        if self.low_power_mode:
            verdicts.append(reading.is_low_power_mode)
        if False in verdicts:
            return False
        return None if None in verdicts else True

    def describe(self, reading: Reading) -> str:
        """Why it holds, with the figures."""
        parts = [condition.describe(reading) for condition in self.conditions]
        if self.low_power_mode:
            parts.append("low-power mode is on")
        if self.unplugged_only:
            parts.append("unplugged")
        return ", ".join(parts)


@dataclass(frozen=True)
class Actions:
    """What a level means.

    Args:
        duty_share: Of the time the engine may compute.
        thread_share: Of its threads, for an engine that is opened meanwhile.
        max_new_tokens: Of one answer; None for no limit.
        speculation: Whether tokens may be guessed ahead, which costs work that may be thrown away.
    """

    duty_share: float = 1.0
    thread_share: float = 1.0
    max_new_tokens: int | None = None
    speculation: bool = True

    def threads_of(self, threads: int) -> int:
        """Of so many threads, how many may be used."""
        return max(1, int(threads * self.thread_share))
