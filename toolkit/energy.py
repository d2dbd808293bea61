"""Joules, where something counts them: what the battery gives, or the processor's own counters. Never worked out from anything else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from toolkit.power.rapl import RaplCounter
from toolkit.power.reading import Reading

_LONGEST_STEP_S = 3.0  # the battery is looked at each second; over a longer gap nobody knows what it gave
_LEAST_LOOKS = 2


class MeterKind(StrEnum):
    """What counted."""

    BATTERY = "battery"  # the whole device, by the power that its battery gives
    RAPL = "rapl"  # the processor packages, or the platform where it is counted


@dataclass(frozen=True)
class Mark:
    """Where the meters stood at one moment.

    Args:
        battery_j: Since the meter was made.
        n_looks: At the battery, in this unbroken row of them.
        row: Which row that is; a look that told nothing ended the one before.
        rapl_j: Since the meter was made; None without counters.
    """

    battery_j: float
    n_looks: int
    row: int
    rapl_j: float | None


@dataclass(frozen=True)
class Energy:
    """What one answer used, of the whole device, whatever else it did meanwhile.

    Args:
        meter: What counted.
        energy_j: From the call to the end.
        prefill_j: Of it, until the first text; None when no text came.
    """

    meter: MeterKind
    energy_j: float
    prefill_j: float | None


class EnergyMeter:
    """Adds up what the meters say. All methods may be called from any thread."""

    def __init__(self, counter: RaplCounter | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._counter, self._clock = counter, clock
        self._lock = threading.Lock()
        self._battery_j, self._power_w = 0.0, 0.0
        self._looked_at: float | None = None
        self._n_looks = self._row = 0

    def look(self, reading: Reading) -> None:
        """Take a reading of the device: what the battery gives is taken to hold until the next one."""
        with self._lock:
            now = self._clock()
            self._add(now)
            if reading.battery_power_w is None:
                self._break()
                return
            self._power_w, self._looked_at = reading.battery_power_w, now
            self._n_looks += 1

    def mark(self) -> Mark:
        """Where the meters stand now."""
        with self._lock:
            self._add(self._clock())
            rapl_j = None if self._counter is None else self._counter.energy_j()
            return Mark(self._battery_j, self._n_looks, self._row, rapl_j)

    def _add(self, now: float) -> None:
        if self._looked_at is None:
            return
        if now - self._looked_at > _LONGEST_STEP_S:
            self._break()
            return
        self._battery_j += self._power_w * (now - self._looked_at)
        self._looked_at = now

    def _break(self) -> None:
        self._looked_at, self._n_looks = None, 0
        self._row += 1


def energy_between(start: Mark, first: Mark | None, end: Mark) -> Energy | None:
    """What was used between two marks, `first` at the first text; None where no meter told all of it.

    The battery's figure is for the whole device and so comes first. It needs two looks between them: one alone is an instant.
    """
    if end.row == start.row and end.n_looks - start.n_looks >= _LEAST_LOOKS:
        until_first = None if first is None else first.battery_j - start.battery_j
        return Energy(MeterKind.BATTERY, end.battery_j - start.battery_j, until_first)
    if start.rapl_j is None or end.rapl_j is None:
        return None
    until_first = None if first is None or first.rapl_j is None else first.rapl_j - start.rapl_j
    return Energy(MeterKind.RAPL, end.rapl_j - start.rapl_j, until_first)
