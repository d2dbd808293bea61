"""What ends or stops an engine's process in the middle of its work does not end ours, and is named."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.tiny_bundle import CONTEXT_LENGTH
from tests.toolkit.isolated import LONG, PROMPT, SILENCE_S, is_alive, say, wait_until, worker_pid
from toolkit.backends.base import Message
from toolkit.engine import Engine
from toolkit.errors import UsageError
from toolkit.session import FinishReason
from toolkit.worker_death import CrashCause, EngineCrashed
from toolkit.worker_proxy import RemoteEngine
from toolkit.worker_start import can_isolate
from toolkit.worker_watch import WorkerLimits

pytestmark = [
    pytest.mark.usefixtures("module_cache", "no_notes"),
    pytest.mark.skipif(not can_isolate(), reason="this platform lets an app start no process"),
]


def test_an_engine_has_a_process_of_its_own_unless_asked_otherwise(chat_bundle: Path, engine: Engine) -> None:
    assert engine.is_isolated and worker_pid(engine) not in (0, os.getpid())
    assert os.getsid(worker_pid(engine)) == worker_pid(engine), "Ctrl-C in the terminal must not reach it"
    with Engine.open(chat_bundle, isolated=False) as inside:
        assert not inside.is_isolated
        assert say(inside.session(), max_tokens=20) == say(engine.session(), max_tokens=20)


@pytest.mark.parametrize(
    ("number", "cause"),
    [(signal.SIGSEGV, CrashCause.SIGNAL), (signal.SIGABRT, CrashCause.SIGNAL), (signal.SIGTERM, CrashCause.KILLED)],
)
def test_a_death_in_the_middle_of_an_answer_keeps_its_text_and_names_the_cause(
    engine: Engine, number: signal.Signals, cause: CrashCause
) -> None:
    session = engine.session()
    pieces = session.send(PROMPT, max_tokens=LONG)
    text = next(pieces).text + next(pieces).text
    os.kill(worker_pid(engine), number)
    with pytest.raises(EngineCrashed) as caught:
        for piece in pieces:
            text += piece.text
    assert caught.value.cause is cause and number.name in caught.value.why
    assert "pieces so far" in caught.value.last_event
    assert session.finish_reason is FinishReason.CRASHED
    assert session.messages == (Message("user", PROMPT), Message("assistant", text))
    assert session.metrics is not None and session.metrics.n_generated_tokens >= 2
    assert say(session, "and the valve", max_tokens=20), "the same session goes on in a new process"
    assert engine.n_restarts == 1 and session.metrics is not None and session.metrics.n_restarts == 1


def test_an_async_answer_ends_with_the_same_error(engine: Engine) -> None:
    async def ask() -> str:
        text = ""
        async for piece in engine.session().asend(PROMPT, max_tokens=LONG):
            if not text:
                os.kill(worker_pid(engine), signal.SIGSEGV)
            text += piece.text
        return text

    with pytest.raises(EngineCrashed, match="SIGSEGV"):
        asyncio.run(ask())


def test_a_stopped_process_counts_as_hanging(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, context_length=CONTEXT_LENGTH, limits=WorkerLimits(silence_s=SILENCE_S)) as engine:
        pieces = engine.session().send(PROMPT, max_tokens=LONG)
        next(pieces)
        os.kill(worker_pid(engine), signal.SIGSTOP)
        with pytest.raises(EngineCrashed, match="no sign of life for 3 s") as caught:
            list(pieces)
        assert caught.value.cause is CrashCause.HANG and "stopped" in caught.value.why


def test_a_call_that_is_not_answered_counts_as_hanging_too(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, context_length=256, limits=WorkerLimits(silence_s=SILENCE_S)) as engine:
        os.kill(worker_pid(engine), signal.SIGSTOP)
        with pytest.raises(EngineCrashed, match="no sign of life"):
            engine.tokenize("x")


def test_an_idle_engine_may_be_idle_for_longer_than_the_limit(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, context_length=256, limits=WorkerLimits(silence_s=SILENCE_S, stall_s=SILENCE_S)) as engine:
        time.sleep(SILENCE_S + 1)
        assert engine.tokenize("check") and engine.n_restarts == 0


def test_cancelling_from_another_thread_ends_the_answer_and_leaves_the_session_usable(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, context_length=CONTEXT_LENGTH) as engine:
        session = engine.session()

        def cancel_when_it_answers() -> None:
            wait_until(lambda: session.is_answering, "its beginning")
            session.cancel()

        threading.Thread(target=cancel_when_it_answers).start()
        say(session, "pump " * 2000, max_tokens=1500)
        assert session.finish_reason is FinishReason.CANCELLED
        assert say(session, max_tokens=10)


def test_cancelling_works_while_the_process_is_stopped(engine: Engine) -> None:
    session = engine.session()
    pieces = session.send(PROMPT, max_tokens=LONG)
    next(pieces)
    os.kill(worker_pid(engine), signal.SIGSTOP)
    session.cancel()
    assert list(pieces) == [] and session.finish_reason is FinishReason.CANCELLED
    engine.close()


def test_closing_ends_the_process_at_once_whatever_it_does(chat_bundle: Path) -> None:
    engine = Engine.open(chat_bundle, context_length=CONTEXT_LENGTH)
    pid = worker_pid(engine)
    next(engine.session().send(PROMPT, max_tokens=LONG))
    engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(UsageError, match="closed"):
        engine.tokenize("x")


def test_an_engine_nobody_holds_leaves_no_process(chat_bundle: Path) -> None:
    engine = Engine.open(chat_bundle, context_length=128)
    pid = worker_pid(engine)
    del engine
    wait_until(lambda: not is_alive(pid), "its end")


def test_a_fork_does_not_inherit_the_engine(engine: Engine) -> None:
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            engine.tokenize("x")
            verdict = b"answered"
        except UsageError:
            verdict = b"refused"
        engine.close()  # must not end the parent's engine
        os.write(writer, verdict)
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 100) == b"refused"
    assert engine.tokenize("x") and engine.n_restarts == 0


def test_a_process_that_outgrows_the_budget_is_ended(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, context_length=CONTEXT_LENGTH) as engine:
        assert isinstance(engine.native, RemoteEngine)
        engine.native.worker._limits = WorkerLimits(max_resident_bytes=2**20)
        pieces = engine.session().send(PROMPT, max_tokens=LONG)
        with pytest.raises(EngineCrashed, match="the budget is 1 MiB") as caught:
            list(pieces)
        assert caught.value.cause is CrashCause.MEMORY


def test_warnings_of_the_process_reach_our_log(
    chat_bundle: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONDEVICE_TOOLKIT_CACHE", "/dev/null/none")
    with caplog.at_level(logging.WARNING), Engine.open(chat_bundle, context_length=128):
        pass
    assert any(record.name == "toolkit.backends.litert" and "cache" in record.message for record in caplog.records)
