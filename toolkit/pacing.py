"""Carries out what a governor decides, on one engine, while it answers: holds it, lets it go on, ends its answers, frees its weights."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from toolkit.answer import FinishReason
from toolkit.backends.base import Sink, StreamEnd, StreamEvent
from toolkit.energy import Energy, EnergyMeter, Mark, energy_between
from toolkit.governor import POLL_S, Governor, GovernorEvent, GovernorState
from toolkit.power.reading import Reading

_LOG = logging.getLogger(__name__)
PERIOD_S = 0.5  # of a share of the time: text comes in bursts no longer than that
_LOOK_S = 0.1  # a cancelled answer tells nobody here
_LEAST_WAIT_S = 0.02  # a shorter turn costs more in signals and cold caches than it saves


class Held(Protocol):
    """What of an engine is held."""

    def hold(self, is_held: bool) -> None:
        """Stop what computes where it is, or let it go on; returns at once."""

    def interrupt_all(self, reason: FinishReason) -> None:
        """End every answer that runs."""

    def free(self) -> None:
        """End every answer that has begun since, and free the weights; the next use loads them again."""


class Pacer:
    """One engine's obedience. Has a thread while something is being answered, none else.

    Threads: all methods may be called from any thread.

    Attributes:
        held_s: For how long the engine was held so far, all together.
    """

    def __init__(self, governor: Governor, held: Held, meter: EnergyMeter) -> None:
        self.governor, self._held, self._meter = governor, held, meter
        self.held_s = 0.0
        self._changed = threading.Condition()
        self._running: set[AnswerWatch] = set()
        self._is_held = False
        self._looked: Reading | None = None
        self._thread: threading.Thread | None = None

    def enter(self, answer: AnswerWatch) -> None:
        """An answer begins."""
        with self._changed:
            self._running.add(answer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="engine-pacer", daemon=True)
                self._thread.start()

    def leave(self, answer: AnswerWatch) -> None:
        """An answer has ended, in whatever way; the last one lets the engine go."""
        with self._changed:
            self._running.discard(answer)
            if not self._running:
                self._set_held(False)
            self._changed.notify_all()

    def gated(self, sink: Sink, answer: AnswerWatch, is_over: Callable[[], bool]) -> Sink:
        """A sink that keeps the engine's thread waiting while the engine is held: for engines of this process, which no signal stops.

        `is_over` says that the answer was cancelled: then whoever closes the engine waits for that thread.
        """

        def pass_on(event: StreamEvent) -> None:
            if not isinstance(event, StreamEnd):
                with self._changed:
                    while self._is_held and answer in self._running and not is_over():
                        self._changed.wait(_LOOK_S)
            sink(event)

        return pass_on

    def _run(self) -> None:
        try:
            while self._takes_a_turn():
                pass
        except Exception:  # whatever it was, nobody must wait for an engine that is held for ever
            _LOG.exception("the governor is left out of what is answered now")
            with self._changed:
                self._thread = None
                self._set_held(False)

    def _takes_a_turn(self) -> bool:
        """Look, obey, wait; false when nothing is answered any more."""
        state = self.governor.poll()
        if self.governor.reading is not self._looked:
            self._looked = self.governor.reading
            self._meter.look(self._looked)
        if state is GovernorState.STOP:
            self._stop()
        with self._changed:
            if not self._running:
                self._thread = None  # in one step with the look at `_running`: who enters after it starts another
                return False
            self._turn(state)
        return True

    def _turn(self, state: GovernorState) -> None:
        """One turn of working and waiting, about a second or `PERIOD_S` long; ends early when no answer is left. Needs the lock."""
        if state in (GovernorState.PAUSE, GovernorState.STOP):
            self._wait(POLL_S / 2, is_held=state is GovernorState.PAUSE)
            return
        working_s = PERIOD_S * self.governor.actions.duty_share
        if PERIOD_S - working_s < _LEAST_WAIT_S:
            self._wait(POLL_S, is_held=False)
            return
        self._wait(working_s, is_held=False)
        if self._running:
            self._wait(PERIOD_S - working_s, is_held=True)

    def _wait(self, seconds: float, *, is_held: bool) -> None:
        self._set_held(is_held)
        began = time.monotonic()
        self._changed.wait_for(lambda: not self._running, seconds)
        if is_held:
            self.held_s += time.monotonic() - began

    def _set_held(self, is_held: bool) -> None:
        """Said each turn, not only when it changes: the engine may be another one since, loaded again."""
        self._is_held = is_held
        self._held.hold(is_held)
        self._changed.notify_all()

    def _stop(self) -> None:
        self._held.interrupt_all(FinishReason.BUDGET)
        with self._changed:
            self._set_held(False)
        self._held.free()


class AnswerWatch:
    """What governor and meter saw while one answer ran."""

    def __init__(self, pacer: Pacer | None, meter: EnergyMeter, *, is_isolated: bool = False) -> None:
        """`is_isolated`: the engine has a process of its own, which the pacer holds; else its text is held."""
        self._pacer, self._meter, self._is_isolated = pacer, meter, is_isolated
        self._start: Mark = meter.mark()
        self._first: Mark | None = None
        self._end: Mark | None = None
        # What is in force when it begins belongs to it.
        self._n_events = 0 if pacer is None else pacer.governor.n_events - (pacer.governor.state is not GovernorState.FULL)
        self._held_before_s = 0.0 if pacer is None else pacer.held_s
        self.events: tuple[GovernorEvent, ...] = ()
        self.held_s = 0.0
        if pacer is not None:
            pacer.enter(self)

    def gated(self, sink: Sink, is_over: Callable[[], bool]) -> Sink:
        """What the engine is given instead of `sink`."""
        return sink if self._pacer is None or self._is_isolated else self._pacer.gated(sink, self, is_over)

    def note_text(self) -> None:
        """Text came; the first time counts."""
        if self._first is None:
            self._first = self._meter.mark()

    def close(self) -> None:
        """The answer has ended. May be called twice."""
        if self._end is not None:
            return
        self._end = self._meter.mark()
        if self._pacer is not None:
            self._pacer.leave(self)
            self.events = self._pacer.governor.events_since(self._n_events)
            self.held_s = self._pacer.held_s - self._held_before_s

    @property
    def energy(self) -> Energy | None:
        """What it used; None while it runs, and where no meter told."""
        return None if self._end is None else energy_between(self._start, self._first, self._end)
