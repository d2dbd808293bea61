"""Decides how much an engine may do, from what the device tells and one table. It carries nothing out: `toolkit.pacing` does."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from toolkit.budget import Budget
from toolkit.governor_policy import GovernorPolicy, load_policy
from toolkit.governor_rows import Actions, GovernorState
from toolkit.power.reading import Reading
from toolkit.power.sources import DeviceReader

__all__ = ["Governor", "GovernorEvent", "GovernorState"]

_LOG = logging.getLogger(__name__)
POLL_S = 1.0  # Android answers its headroom no sooner, and nothing here changes faster
_MOST_EVENTS = 1000  # kept of an engine that runs for months


@dataclass(frozen=True)
class GovernorEvent:
    """One change of state.

    Args:
        unix_s: When, by the wall clock.
        at_s: When, by the governor's own clock, which never jumps.
        was: Before.
        state: From then on.
        why: The figures that asked for it, or that it is over.
    """

    unix_s: float
    at_s: float
    was: GovernorState
    state: GovernorState
    why: str

    def as_dict(self) -> dict[str, Any]:
        """One of `governor_events` in the metrics."""
        return {"unix_s": round(self.unix_s, 3), "was": self.was.value, "state": self.state.value, "why": self.why}


@dataclass(frozen=True)
class _Demand:
    """What the rows that hold ask for, and the figures that do."""

    state: GovernorState
    duty_share: float
    why: str = ""

    @property
    def rank(self) -> tuple[int, float]:
        """The larger the worse."""
        return self.state.severity, -self.duty_share


_NOTHING = _Demand(GovernorState.FULL, 1.0)


class Governor:
    """Reads the device at most once a second, when it is asked, and has no thread of its own.

    Worse counts at once. Better counts when it has lasted `settle_s`, and then as far as the worst of that time allows: so noise around
    a limit changes the state at most once, and two improvements are never nearer than `settle_s`.

    Threads: every method may be called from any thread. While one reads, others are answered with what is known.
    """

    def __init__(
        self,
        policy: GovernorPolicy | None = None,
        reader: Callable[[], Reading] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            policy: The table; None: the one of this package.
            reader: What tells of the device; None: this one. One that raises is left out from then on.
            clock: Seconds that never jump; a replay gives its own.
            wall_clock: Seconds since 1970, for events.
        """
        self.policy = policy or load_policy()
        self._reader = DeviceReader() if reader is None else DeviceReader([reader])
        self._clock, self._wall_clock = clock, wall_clock
        self._reading_turn, self._lock = threading.Lock(), threading.Lock()
        self._read_at: float | None = None
        self._demand = self._worst_meanwhile = _NOTHING
        self._better_since: float | None = None
        self._held = [False] * len(self.policy.rows)
        self._excused: set[int] = set()
        self._events: deque[GovernorEvent] = deque(maxlen=_MOST_EVENTS)
        self.state, self.why, self.n_events = GovernorState.FULL, "", 0
        self.reading = Reading()

    def within(self, budget: Budget) -> Governor:
        """This one with a budget's limits besides: itself where it has none, else another that reads the same device."""
        policy = self.policy.within(budget)
        return self if policy == self.policy else Governor(policy, self._reader, clock=self._clock, wall_clock=self._wall_clock)

    def poll(self) -> GovernorState:
        """The state now; reads the device if a second has passed since the last time."""
        if self._reading_turn.acquire(blocking=False):
            try:
                now = self._clock()
                if self._read_at is None or now - self._read_at >= POLL_S:
                    reading = self._reader()
                    with self._lock:
                        self._observe(reading, now)
            finally:
                self._reading_turn.release()
        return self.state

    @property
    def actions(self) -> Actions:
        """What the state means."""
        return self.policy.actions(self.state, self._demand.duty_share if self.state is GovernorState.ECONOMY else None)

    @property
    def events(self) -> tuple[GovernorEvent, ...]:
        """Changes so far, the last thousand."""
        return self.events_since(0)

    def events_since(self, n_events: int) -> tuple[GovernorEvent, ...]:
        """Changes after the first `n_events`, an earlier value of the attribute of that name."""
        with self._lock:
            n_new = self.n_events - n_events
            return tuple(self._events)[-n_new:] if n_new > 0 else ()

    def excuse_stops(self) -> str:
        """Go on although rows ask to stop now: they are not asked again. Returns what they said, or nothing."""
        with self._lock:
            rows = [(index, row) for index, row in enumerate(self.policy.rows) if self._held[index] and row.level is GovernorState.STOP]
            self._excused |= {index for index, _ in rows}
            why = "; ".join(row.describe(self.reading) for _, row in rows)
            if self.state is GovernorState.STOP:
                self._change(self._demanded(self.reading), f"forced: {why}", self._clock())
        return why

    def _observe(self, reading: Reading, now: float) -> None:
        gap_s = 0.0 if self._read_at is None else now - self._read_at
        self._read_at, self.reading = now, reading
        demand = self._demanded(reading)
        if demand.rank > self._demand.rank:
            self._change(demand, demand.why, now)
        elif demand.rank == self._demand.rank:
            self._better_since, self._demand, self.why = None, demand, demand.why
        else:
            self._wait_for_better(demand, now, gap_s)

    def _demanded(self, reading: Reading) -> _Demand:
        """The worst of all rows that hold. A row whose figures are unknown does not, but keeps its margin for when they return."""
        worst = _NOTHING
        for index, row in enumerate(self.policy.rows):
            if (verdict := row.holds(reading, was_held=self._held[index])) is None:
                continue
            self._held[index] = verdict
            demand = _Demand(row.level, self.policy.duty_share(row))
            if verdict and index not in self._excused and demand.rank > worst.rank:
                worst = replace(demand, why=row.describe(reading))
        return worst

    def _wait_for_better(self, demand: _Demand, now: float, gap_s: float) -> None:
        """A gap in the readings longer than `settle_s` counts as having waited: nobody asked, so nothing ran."""
        if self._better_since is None:
            self._better_since, self._worst_meanwhile = now, demand
        if demand.rank > self._worst_meanwhile.rank:
            self._worst_meanwhile = demand
        if now - self._better_since >= self.policy.settle_s:
            self._change(self._worst_meanwhile, f"over: {self.why}", now)
        elif gap_s >= self.policy.settle_s:
            self._change(demand, f"over: {self.why}", now)

    def _change(self, demand: _Demand, why: str, now: float) -> None:
        """A demand for another share of the time inside ECONOMY is obeyed by the same rules, and is no change of state."""
        was, self._demand, self._better_since = self.state, demand, None
        if demand.state is not was:
            self._events.append(GovernorEvent(self._wall_clock(), now, was, demand.state, why))
            self.n_events += 1
            self.state = demand.state
            _LOG.info("governor: %s after %s (%s)", self.state.value, was.value, why)
        self.why = demand.why
