"""Pauses and stops of a real engine, in its own process and in this one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.toolkit.hot_phone import WELL, Phone
from tests.toolkit.isolated import LONG, PROMPT, is_alive, say, wait_until, worker_pid
from tests.toolkit.test_worker_hold import is_stopped
from toolkit.engine import Engine
from toolkit.governor import Governor, GovernorState
from toolkit.governor_policy import load_policy
from toolkit.governor_replay import TraceReader
from toolkit.pacing import Pacer
from toolkit.power.reading import Reading
from toolkit.session import FinishReason
from toolkit.worker_death import CrashCause, EngineCrashed
from toolkit.worker_hold import Hold
from toolkit.worker_start import can_isolate
from toolkit.worker_watch import WorkerLimits

ROOT = Path(__file__).parents[2]


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


@pytest.fixture
def paused(open_real: Callable[..., Engine]) -> Iterator[Engine]:
    """An engine whose process is stopped in the middle of an answer."""
    if not can_isolate():
        pytest.skip("this platform lets an app start no process")
    phone = Phone()
    engine = open_real(isolated=True, governor=phone.governor)
    pieces = engine.session().send(PROMPT, max_tokens=LONG)
    next(pieces)
    phone.heat(3)
    wait_until(lambda: is_stopped(worker_pid(engine)), "the stop of the process")
    yield engine
    pieces.close()  # type: ignore[attr-defined]


def test_a_paused_process_still_answers_calls(paused: Engine) -> None:
    assert paused.tokenize("pump")
    wait_until(lambda: is_stopped(worker_pid(paused)), "the stop after the call")


def test_a_replayed_trace_drives_a_real_engine(open_real: Callable[..., Engine], isolated: bool) -> None:
    """By the package's own table; the trace's seconds pass when the test says so."""
    now = 0.0
    trace = [(0.0, WELL), (30.0, Reading(thermal_status=3)), (120.0, WELL)]
    governor = Governor(load_policy(), TraceReader(trace, lambda: now), clock=lambda: now)
    engine = open_real(isolated=isolated, governor=governor)
    session = engine.session()
    pieces = session.send(PROMPT, max_tokens=LONG)
    next(pieces)
    now = 60.0
    wait_until(held(engine), "the pause")
    now = 130.0
    wait_until(lambda: governor.reading == WELL, "the look at a device that is well")
    now = 200.0  # and has been for longer than `settle_s`
    for _ in pieces:
        pass
    assert session.metrics is not None and session.finish_reason is FinishReason.LENGTH
    assert [event["state"] for event in session.metrics.governor_events] == ["pause", "full"]


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


def test_where_no_signal_may_stop_it_the_process_waits_with_its_text(
    open_real: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS. It shows signs of life meanwhile, does no work, and is not taken for one that hangs."""
    if not can_isolate():
        pytest.skip("this platform lets an app start no process")
    monkeypatch.setattr("toolkit.worker.Hold", partial(Hold, by_signal=False))
    phone = Phone()
    engine = open_real(isolated=True, governor=phone.governor, limits=WorkerLimits(silence_s=3.0, stall_s=3.0, result_s=3.0))
    session = engine.session()
    pieces, n_pieces = session.send(PROMPT, max_tokens=LONG), 0

    def listen() -> None:
        nonlocal n_pieces
        for _ in pieces:
            n_pieces += 1

    listener = threading.Thread(target=listen)
    listener.start()
    wait_until(lambda: n_pieces > 0, "the first text")
    phone.heat(3)
    wait_until(held(engine), "the pause")
    time.sleep(0.5)  # what was in the pipe
    before = n_pieces
    time.sleep(4.0)
    assert n_pieces == before and listener.is_alive()
    phone.heat(0)
    listener.join(120)
    assert not listener.is_alive() and session.finish_reason is FinishReason.LENGTH


HOST = """
import sys, time
from tests.toolkit.hot_phone import Phone
from tests.toolkit.isolated import LONG, PROMPT, worker_pid
from toolkit.engine import Engine

phone = Phone()
engine = Engine.open(sys.argv[1], context_length=4096, threads=1, isolated=True, governor=phone.governor)
pieces = engine.session().send(PROMPT, max_tokens=LONG)
next(pieces)
phone.heat(3)
print(worker_pid(engine), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is stopped")
def test_a_stopped_process_ends_with_its_host(chat_bundle: Path, module_cache: Path) -> None:
    host = subprocess.Popen([sys.executable, "-c", HOST, str(chat_bundle)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert host.stdout is not None
    try:
        pid = int(host.stdout.readline())
        wait_until(lambda: is_stopped(pid), "the stop of the process")
    finally:
        host.kill()
        host.communicate()
    wait_until(lambda: not is_alive(pid), "the end of the engine's process")


def test_a_fork_lets_nothing_go_on(paused: Engine) -> None:
    """It has a copy of everything that could, such as a generator that it collects."""
    if (pid := os.fork()) == 0:
        paused.hold(False)
        os._exit(0)
    os.waitpid(pid, 0)
    time.sleep(0.2)
    assert is_stopped(worker_pid(paused))
