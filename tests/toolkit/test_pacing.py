"""The pacer: holds an engine while the governor says so, and never longer than somebody is answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.toolkit.isolated import wait_until
from toolkit.answer import FinishReason
from toolkit.backends.base import StreamEnd, StreamEvent
from toolkit.energy import EnergyMeter
from toolkit.governor import Governor, GovernorState
from toolkit.governor_policy import GovernorPolicy
from toolkit.governor_rows import Actions, Condition, Row
from toolkit.pacing import AnswerWatch, Pacer
from toolkit.power.reading import Reading

ROWS = tuple(
    Row(level, (Condition("thermal_status", "at least", status),))
    for status, level in ((1, GovernorState.ECONOMY), (2, GovernorState.PAUSE), (3, GovernorState.STOP))
)
POLICY = GovernorPolicy(ROWS, settle_s=0.0, economy=Actions(duty_share=0.4))


class Engine:
    """Records what changes. The governor's seconds pass faster than real ones."""

    def __init__(self) -> None:
        self.status, self.began = 0, time.monotonic()
        self.is_held, self.holds = False, list[bool]()
        self.interrupted: list[FinishReason] = []
        self.n_freed = 0
        self.governor = Governor(POLICY, lambda: Reading(thermal_status=self.status, battery_power_w=2.0), clock=self.clock)
        self.pacer = Pacer(self.governor, self, EnergyMeter())

    def clock(self) -> float:
        return 100 * (time.monotonic() - self.began)

    def hold(self, is_held: bool) -> None:
        if is_held is not self.is_held:
            self.holds.append(is_held)
        self.is_held = is_held

    def interrupt_all(self, reason: FinishReason) -> None:
        self.interrupted.append(reason)

    def free(self) -> None:
        self.n_freed += 1


def pacers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "engine-pacer"]


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    wait_until(lambda: not pacers(), "the end of the pacer's thread")
    assert not made.is_held


def watch(engine: Engine) -> AnswerWatch:
    return AnswerWatch(engine.pacer, EnergyMeter())


def test_a_device_that_is_well_is_never_held_and_has_no_thread_afterwards(engine: Engine) -> None:
    answer = watch(engine)
    time.sleep(0.1)
    answer.close()
    answer.close()
    assert engine.holds == [] and answer.events == () and answer.held_s == 0


def test_pause_holds_until_it_is_over(engine: Engine) -> None:
    engine.status = 2
    answer = watch(engine)
    wait_until(lambda: engine.is_held, "the pause")
    engine.status = 0
    wait_until(lambda: not engine.is_held, "the end of the pause")
    answer.close()
    assert [event.state for event in answer.events] == [GovernorState.PAUSE, GovernorState.FULL]
    assert engine.holds == [True, False] and answer.held_s > 0


def test_economy_lets_it_go_and_holds_it_in_turns(engine: Engine) -> None:
    engine.status = 1
    answer = watch(engine)
    wait_until(lambda: len(engine.holds) >= 6, "three turns")
    answer.close()
    assert engine.holds[:6] == [True, False] * 3


def test_an_answer_that_ends_in_a_pause_lets_the_engine_go(engine: Engine) -> None:
    engine.status = 2
    answer = watch(engine)
    wait_until(lambda: engine.is_held, "the pause")
    answer.close()
    assert not engine.is_held


def test_only_the_last_of_two_answers_lets_it_go(engine: Engine) -> None:
    engine.status = 2
    first, second = watch(engine), watch(engine)
    wait_until(lambda: engine.is_held, "the pause")
    first.close()
    assert engine.is_held
    second.close()
    assert not engine.is_held


def test_stop_ends_all_answers_and_frees_the_weights(engine: Engine) -> None:
    engine.status = 3
    answer = watch(engine)
    wait_until(lambda: engine.n_freed > 0, "the stop")
    answer.close()
    assert engine.interrupted[0] is FinishReason.BUDGET
    assert answer.events[-1].state is GovernorState.STOP


def test_the_thread_of_an_engine_in_this_process_waits_at_the_gate(engine: Engine) -> None:
    engine.status = 2
    answer = watch(engine)
    wait_until(lambda: engine.is_held, "the pause")
    taken: list[StreamEvent] = []
    gated = answer.gated(taken.append, lambda: False)
    gated(StreamEnd())  # an end never waits
    thread = threading.Thread(target=gated, args=["text"])
    thread.start()
    thread.join(0.3)
    assert thread.is_alive() and taken == [StreamEnd()]
    answer.close()
    thread.join(60)
    assert taken == [StreamEnd(), "text"]


def test_a_cancelled_answer_waits_at_no_gate(engine: Engine) -> None:
    engine.status = 2
    answer = watch(engine)
    wait_until(lambda: engine.is_held, "the pause")
    taken: list[StreamEvent] = []
    answer.gated(taken.append, lambda: True)("text")
    assert taken == ["text"]
    answer.close()


def test_what_the_meter_told_is_the_answers(engine: Engine) -> None:
    meter = EnergyMeter()
    engine.pacer = Pacer(engine.governor, engine, meter)
    answer = AnswerWatch(engine.pacer, meter)
    answer.note_text()
    assert answer.energy is None
    wait_until(lambda: meter.mark().n_looks >= 3, "three looks at the battery")
    answer.close()
    energy = answer.energy
    assert energy is not None and energy.energy_j > 0 and energy.prefill_j is not None and energy.prefill_j < energy.energy_j


def test_without_a_governor_nothing_is_held_or_gated() -> None:
    answer = AnswerWatch(None, EnergyMeter())
    taken: list[StreamEvent] = []
    assert answer.gated(taken.append, lambda: False) == taken.append
    answer.close()
    assert answer.events == () and answer.energy is None and not pacers()


def test_a_pacer_that_fails_leaves_the_engine_free_and_tries_again_at_the_next_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine.status = 2
    first = watch(engine)
    wait_until(lambda: engine.is_held, "the pause")
    with monkeypatch.context() as patch:
        patch.setattr(engine.governor, "poll", lambda: 1 / 0)
        wait_until(lambda: not engine.is_held, "the end of the pause")
        wait_until(lambda: not pacers(), "the end of the pacer's thread")
    assert "left out" in caplog.text
    first.close()
    second = watch(engine)
    wait_until(lambda: engine.is_held, "the pause of the next")
    second.close()
