"""Tells an engine's process that works from one that hangs, and remembers how much memory was left to it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from toolkit.free_memory import free_memory, total_memory_bytes
from toolkit.units import format_bytes

_LEAST_FREE_SHARE = 0.03


@dataclass(frozen=True)
class WorkerLimits:
    """When an engine's process counts as hanging, and what it may take.

    Args:
        start_s: For loading the bundle. Packing weights for a new processor takes tens of seconds on a slow board.
        silence_s: Without any sign of life while it has work.
        stall_s: With signs of life, but no result and next to no CPU time: it waits for what never comes.
        result_s: Without a result while it computes.
        max_resident_bytes: Resident memory above which it is ended; None for no limit.
    """

    start_s: float = 180.0
    silence_s: float = 15.0
    stall_s: float = 60.0
    result_s: float = 900.0
    max_resident_bytes: int | None = None


class Watch:
    """Tells waiting from working: when something last came, and when the process last used the CPU."""

    _TICK_S = 1.0
    _WORKING_SHARE = 0.02  # of one CPU; heartbeats alone take a thousandth

    def __init__(self) -> None:
        self.reset(time.monotonic())

    def reset(self, now: float) -> None:
        self._sign_at = self._result_at = self._worked_at = now
        self._cpu_s: float | None = None

    def pause_s(self, is_busy: bool) -> float | None:
        """How long the keeper may sleep: for ever while there is nothing to watch."""
        return self._TICK_S if is_busy else None

    def beat(self, now: float, cpu_s: float) -> None:
        if self._cpu_s is None or cpu_s - self._cpu_s > self._WORKING_SHARE * max(self._TICK_S, now - self._sign_at):
            self._worked_at = now
        self._sign_at, self._cpu_s = now, cpu_s

    def result(self, now: float) -> None:
        self._sign_at = self._result_at = self._worked_at = now

    def verdict(self, now: float, limits: WorkerLimits) -> str | None:
        """Why it hangs, or None."""
        if now - self._sign_at > limits.silence_s:
            return f"no sign of life for {limits.silence_s:g} s"
        if now - self._worked_at > limits.stall_s:
            return f"no result and no work for {limits.stall_s:g} s"
        if now - self._result_at > limits.result_s:
            return f"no result for {limits.result_s:g} s"
        return None


class MemoryWatch:
    """Whether memory ran short while a process lived: by the time it is found dead, what it held is free again."""

    _EVERY_S = 0.25
    _COUNTS_FOR_S = 3.0  # a shortage before that passed without a death

    def __init__(self) -> None:
        self._looked_at = float("-inf")
        self._short_at, self._shortage = float("-inf"), ""

    def look(self, now: float) -> None:
        """Read what is free, if the last look was long enough ago."""
        if now - self._looked_at < self._EVERY_S:
            return
        self._looked_at = now
        free, total = free_memory(), total_memory_bytes()
        if free is not None and total is not None and free.bytes <= _LEAST_FREE_SHARE * total:
            self._short_at, self._shortage = now, f"{free.limited_by} was down to {format_bytes(free.bytes)}"

    def shortage(self, now: float) -> str | None:
        """What was short when it was last looked at, if that was just now."""
        return self._shortage if now - self._short_at <= self._COUNTS_FOR_S else None
