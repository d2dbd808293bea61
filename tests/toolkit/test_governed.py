"""An engine under a governor: refused, capped, paused, stopped and opened again, on a backend without weights and on a real one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.toolkit.fake_backend import END, FakeBackend
from tests.toolkit.isolated import LONG, PROMPT, say, wait_until, worker_pid
from tests.toolkit.small_manifest import small_bundle
from tests.toolkit.test_worker_hold import is_stopped
from toolkit.budget import Budget
from toolkit.bundle import Bundle
from toolkit.device.profile import probe_device
from toolkit.engine import Engine
from toolkit.errors import BudgetError
from toolkit.governed import choose_governor
from toolkit.governor import Governor, GovernorState
from toolkit.governor_policy import GovernorPolicy, load_policy
from toolkit.governor_replay import TraceReader
from toolkit.governor_rows import Actions, Condition, Row
from toolkit.pacing import Pacer
from toolkit.power.reading import Reading
from toolkit.session import FinishReason
from toolkit.worker_death import CrashCause, EngineCrashed
from toolkit.worker_start import can_isolate
from toolkit.worker_watch import WorkerLimits

WELL = Reading(battery_share=0.9, is_plugged=False, thermal_status=0)
LOW = Reading(battery_share=0.12, is_plugged=False)
QUICK = GovernorPolicy(
    rows=tuple(
        Row(level, (Condition("thermal_status", "at least", status),))
        for status, level in ((1, GovernorState.ECONOMY), (3, GovernorState.PAUSE), (4, GovernorState.STOP))
    ),
    settle_s=0.0,
    economy=Actions(duty_share=0.5, thread_share=0.5, max_new_tokens=3),
)


class Phone:
    """A device a test makes hot; its seconds pass faster, so that nobody waits for the next look."""

    def __init__(self, reading: Reading = WELL, policy: GovernorPolicy = QUICK) -> None:
        self.reading, self.began = reading, time.monotonic()
        self.governor = Governor(policy, lambda: self.reading, clock=lambda: 20 * (time.monotonic() - self.began))

    def heat(self, status: int) -> None:
        self.reading = Reading(thermal_status=status)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    backend = FakeBackend()
    monkeypatch.setattr("toolkit.engine.load_backend", lambda name: backend)
    return backend


@pytest.fixture
def bundle(tmp_path: Path, own_folders: Path) -> Bundle:
    return Bundle.open(small_bundle(tmp_path / "bundle", stop_token_ids=(0x2402,)))


@pytest.fixture
def open_fake(bundle: Bundle, backend: FakeBackend) -> Iterator[Callable[..., Engine]]:
    opened: list[Engine] = []

    def opener(**options: Any) -> Engine:
        opened.append(Engine.open(bundle, expected_tokens=64, **options))
        return opened[-1]

    yield opener
    for engine in opened:
        engine.close()


@pytest.mark.parametrize(
    ("asked", "budget", "reading", "is_there"),
    [
        (None, Budget(), Reading(), False),
        (None, Budget(), Reading(temperature_c=50.0, memory_pressure=0.1), False),  # a machine at the mains
        (None, Budget(), WELL, True),
        (None, Budget(), Reading(thermal_status=0), True),
        (None, Budget(battery_floor=0.2), Reading(), True),
        (None, Budget(max_temperature_c=60), Reading(), True),
        (True, Budget(), Reading(), True),
        (False, Budget(), WELL, False),
        (False, Budget(battery_floor=0.2), WELL, True),
    ],
)
def test_which_engine_has_a_governor(asked: bool | None, budget: Budget, reading: Reading, is_there: bool) -> None:
    assert (choose_governor(asked, budget, reader=lambda: reading) is not None) is is_there


def test_without_the_table_only_the_budgets_limits_count() -> None:
    governor = choose_governor(
        False, Budget(battery_floor=0.05), reader=lambda: Reading(battery_share=0.07, is_plugged=False, thermal_status=6)
    )
    assert governor is not None and governor.poll() is GovernorState.FULL


def test_a_governor_of_ones_own_keeps_to_the_budget_too() -> None:
    own = Governor(QUICK, lambda: LOW)
    assert choose_governor(own, Budget()) is own
    governor = choose_governor(own, Budget(battery_floor=0.15))
    assert governor is not None and governor.poll() is GovernorState.STOP and own.poll() is GovernorState.FULL


def test_a_battery_below_the_floor_is_refused_before_anything_is_loaded(open_fake: Callable[..., Engine], backend: FakeBackend) -> None:
    with pytest.raises(BudgetError) as caught:
        open_fake(budget=Budget(battery_floor=0.15), governor=Governor(reader=lambda: LOW))
    assert caught.value.exit_code == 3 and backend.opened == []
    lines = str(caught.value).splitlines()
    assert len(lines) == 3 and "battery 12 %, below 15 %, unplugged" in lines[1] and "--force" in lines[2]


def test_forced_it_answers_all_the_same_and_says_so(open_fake: Callable[..., Engine], backend: FakeBackend) -> None:
    engine = open_fake(budget=Budget(battery_floor=0.15), governor=Governor(reader=lambda: LOW), force=True)
    backend.engine.answers = ["yes" + END]
    session = engine.session()
    assert say(session) == "yes" and session.finish_reason is FinishReason.STOP
    assert session.metrics is not None
    (event,) = session.metrics.governor_events
    assert event["state"] == "economy" and event["why"] == "forced: battery 12 %, below 15 %, unplugged"


def test_a_plugged_device_is_never_refused_for_its_battery(open_fake: Callable[..., Engine]) -> None:
    reading = Reading(battery_share=0.02, is_plugged=True)
    assert open_fake(budget=Budget(battery_floor=0.15), governor=Governor(reader=lambda: reading)).governed.governor is not None


def test_economy_shortens_answers_and_halves_the_threads_of_an_engine_opened_then(
    open_fake: Callable[..., Engine], backend: FakeBackend
) -> None:
    phone = Phone(Reading(thermal_status=1))
    engine = open_fake(governor=phone.governor)
    assert engine.threads == max(1, probe_device().cores.best_threads // 2)
    backend.engine.answers = ["abc"]
    session = engine.session()
    assert say(session, max_tokens=20) == "abc" and session.finish_reason is FinishReason.BUDGET
    assert session.metrics is not None and [event["state"] for event in session.metrics.governor_events] == ["economy"]
    backend.engine.answers = ["ab"]
    assert say(session, max_tokens=2) == "ab" and session.finish_reason is FinishReason.LENGTH  # asked for, not cut


def test_threads_that_were_asked_for_stand(open_fake: Callable[..., Engine]) -> None:
    assert open_fake(governor=Phone(Reading(thermal_status=1)).governor, threads=2).threads == 2


def test_a_stopped_engine_refuses_and_opens_again_when_it_is_over(open_fake: Callable[..., Engine], backend: FakeBackend) -> None:
    phone = Phone()
    engine = open_fake(governor=phone.governor)
    session = engine.session()
    backend.engine.answers = ["one" + END, "two" + END]
    assert say(session) == "one"
    phone.heat(4)
    wait_until(lambda: phone.governor.poll() is GovernorState.STOP, "the stop")
    with pytest.raises(BudgetError, match="thermal status 4, at least 4"):
        say(session)
    wait_until(lambda: engine._loader.native is None, "the unloading")
    phone.heat(0)
    wait_until(lambda: phone.governor.poll() is GovernorState.FULL, "the end of it")
    n_opened = len(backend.opened)
    assert say(session) == "two" and len(backend.opened) > n_opened
    assert [message.content for message in session.messages] == ["check the pump", "one", "check the pump", "two"]


def test_without_a_governor_metrics_are_empty_of_it(open_fake: Callable[..., Engine], backend: FakeBackend) -> None:
    engine = open_fake(governor=False)
    backend.engine.answers = ["one" + END]
    session = engine.session()
    say(session)
    assert session.metrics is not None
    told = session.metrics.as_dict()
    assert told["governor_events"] == () and told["held_s"] == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "engine-pacer"]


# ---- a real engine


@pytest.fixture(params=[True, False], ids=["own process", "in process"])
def isolated(request: pytest.FixtureRequest) -> bool:
    if request.param and not can_isolate():
        pytest.skip("this platform lets an app start no process")
    return bool(request.param)


@pytest.fixture
def open_real(chat_bundle: Path, module_cache: Path, no_notes: None) -> Iterator[Callable[..., Engine]]:
    opened: list[Engine] = []

    def opener(**options: Any) -> Engine:
        opened.append(Engine.open(chat_bundle, context_length=4096, threads=1, **options))
        return opened[-1]

    yield opener
    for engine in opened:
        engine.close()


def held(engine: Engine) -> Callable[[], bool]:
    pacer = engine.governed._pacer
    assert isinstance(pacer, Pacer)
    return lambda: pacer._is_held


def test_a_pause_keeps_the_text_and_the_answer_is_the_same(open_real: Callable[..., Engine], isolated: bool) -> None:
    plain = open_real(isolated=isolated, governor=False)
    expected = say(plain.session(), max_tokens=LONG)
    phone = Phone()
    engine = open_real(isolated=isolated, governor=phone.governor, limits=WorkerLimits(silence_s=3.0, stall_s=3.0, result_s=3.0))
    session = engine.session()
    pieces = session.send(PROMPT, max_tokens=LONG)
    text = next(pieces).text
    phone.heat(3)
    wait_until(held(engine), "the pause")
    if isolated:
        wait_until(lambda: is_stopped(worker_pid(engine)), "the stop of the process")
        time.sleep(4.0)  # longer than what counts as a hang
        assert is_stopped(worker_pid(engine))
    phone.heat(0)
    text += "".join(piece.text for piece in pieces)
    assert text == expected and session.finish_reason is FinishReason.LENGTH
    assert session.metrics is not None and session.metrics.held_s > 0
    assert [event["state"] for event in session.metrics.governor_events] == ["pause", "full"]


def test_nothing_comes_while_it_is_paused(open_real: Callable[..., Engine], isolated: bool) -> None:
    phone = Phone()
    session = (engine := open_real(isolated=isolated, governor=phone.governor)).session()
    n_pieces, is_done = 0, threading.Event()

    def listen() -> None:
        nonlocal n_pieces
        for _ in session.send(PROMPT, max_tokens=LONG):
            n_pieces += 1
        is_done.set()

    listener = threading.Thread(target=listen)
    listener.start()
    wait_until(lambda: n_pieces > 0, "the first text")
    phone.heat(3)
    wait_until(held(engine), "the pause")
    time.sleep(0.5)  # what was in the pipe
    before = n_pieces
    time.sleep(0.5)
    assert n_pieces == before and not is_done.is_set()
    began = time.monotonic()
    session.cancel()
    listener.join(60)
    assert is_done.is_set() and session.finish_reason is FinishReason.CANCELLED
    assert time.monotonic() - began < 30
    phone.heat(0)
    assert say(session, max_tokens=5) != ""  # it is usable afterwards


def test_stop_in_the_middle_ends_the_answer_and_frees_the_weights(open_real: Callable[..., Engine], isolated: bool) -> None:
    phone = Phone()
    engine = open_real(isolated=isolated, governor=phone.governor)
    session = engine.session()
    pieces = session.send(PROMPT, max_tokens=LONG)
    text = next(pieces).text
    phone.heat(4)
    text += "".join(piece.text for piece in pieces)
    assert session.finish_reason is FinishReason.BUDGET
    assert session.messages[-1].content == text
    wait_until(lambda: engine._loader.native is None, "the unloading")
    phone.heat(0)
    wait_until(lambda: phone.governor.poll() is GovernorState.FULL, "the end of it")
    assert say(session, max_tokens=5) != "" and len(session.messages) == 4


def test_closing_a_paused_engine_does_not_wait(open_real: Callable[..., Engine], isolated: bool) -> None:
    phone = Phone()
    engine = open_real(isolated=isolated, governor=phone.governor)
    pieces = engine.session().send(PROMPT, max_tokens=LONG)
    next(pieces)
    phone.heat(3)
    wait_until(held(engine), "the pause")
    closing = threading.Thread(target=engine.close)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    assert list(pieces) == []


def test_a_paused_process_still_answers_calls(open_real: Callable[..., Engine]) -> None:
    if not can_isolate():
        pytest.skip("this platform lets an app start no process")
    phone = Phone()
    engine = open_real(isolated=True, governor=phone.governor)
    pieces = engine.session().send(PROMPT, max_tokens=LONG)
    next(pieces)
    phone.heat(3)
    wait_until(lambda: is_stopped(worker_pid(engine)), "the stop of the process")
    assert engine.tokenize("pump")
    wait_until(lambda: is_stopped(worker_pid(engine)), "the stop after the call")


def test_a_replayed_trace_drives_a_real_engine(open_real: Callable[..., Engine], isolated: bool) -> None:
    """The package's own table, on seconds that pass a hundred times faster."""
    began = time.monotonic()

    def clock() -> float:
        return 100 * (time.monotonic() - began)

    trace = [(0.0, WELL), (30.0, Reading(thermal_status=3)), (120.0, WELL)]
    governor = Governor(load_policy(), TraceReader(trace, clock), clock=clock)
    session = open_real(isolated=isolated, governor=governor).session()
    pieces = session.send(PROMPT, max_tokens=LONG)
    for _ in pieces:
        if governor.n_events >= 2:
            break
    pieces.close()  # type: ignore[attr-defined]
    assert session.metrics is not None
    assert [event["state"] for event in session.metrics.governor_events][:2] == ["pause", "full"]


def test_a_watch_that_counts_the_pause_would_kill_the_process(open_real: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """The must-fail twin of the pause that is longer than what counts as a hang."""
    if not can_isolate():
        pytest.skip("this platform lets an app start no process")
    monkeypatch.setattr("toolkit.worker_hold.Hold.now", lambda hold: time.monotonic())
    phone = Phone()
    engine = open_real(isolated=True, governor=phone.governor, limits=WorkerLimits(silence_s=3.0, stall_s=3.0, result_s=3.0))
    pieces = engine.session().send(PROMPT, max_tokens=LONG)
    next(pieces)
    phone.heat(3)
    with pytest.raises(EngineCrashed) as caught:
        list(pieces)
    assert caught.value.cause is CrashCause.HANG
