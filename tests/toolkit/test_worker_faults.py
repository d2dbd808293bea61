"""What a damaged, stuck or overfed engine's process must not do: leave a caller waiting, or itself unusable."""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.toolkit.scripted_process import Started, scripted
from toolkit.backends.base import Message, Sampling
from toolkit.errors import EngineError, UsageError
from toolkit.worker import Worker
from toolkit.worker_death import CrashCause, EngineCrashed
from toolkit.worker_proxy import RemoteEngine
from toolkit.worker_start import can_isolate
from toolkit.worker_values import Handle

pytestmark = pytest.mark.skipif(not can_isolate(), reason="this platform lets an app start no process")
LIMIT_S = 30.0


def outcome_of(call: Callable[[], Any]) -> Any:
    """What a call returned or raised; it fails when nobody answers it."""
    answered: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work() -> None:
        try:
            answered.put(call())
        except Exception as error:
            answered.put(error)

    threading.Thread(target=work, daemon=True).start()
    return answered.get(timeout=LIMIT_S)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Worker]]:
    workers: list[Worker] = []

    def start(script: str) -> Worker:
        monkeypatch.setattr("toolkit.worker.start_process", scripted(script))
        workers.append(Worker("bundle"))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


@pytest.mark.parametrize(
    "reply",
    [
        '{"reply": 1, "value": {"$": "Popen", "body": {}}}',
        '{"reply": 1, "value": {"neither": "plain nor tagged"}}',
        '{"reply": 1}',
        '{"reply": 1, "error": 3}',
        '{"reply": [1], "value": 3}',
        '{"beat": "often", "rss": 1}',
        '{"beat": 1' + "0" * 400 + ', "rss": 1}',
        '{"log": "x", "level": Infinity, "text": ""}',
    ],
)
def test_a_damaged_reply_is_named_and_leaves_nobody_waiting(started: Callable[[str], Worker], reply: str) -> None:
    worker = started(f"take()\nwrite({reply!r})\ntime.sleep(60)")
    error = outcome_of(lambda: worker.call(0, "open_engine"))
    assert isinstance(error, EngineCrashed) and error.cause is CrashCause.GARBAGE
    assert "what is no message" in error.why


def test_a_message_that_is_too_long_is_refused_and_the_engine_lives(started: Callable[[str], Worker]) -> None:
    worker = started('take()\nframe({"reply": 2, "value": 7})\ntake()')
    with pytest.raises(UsageError) as caught:
        worker.call(0, "tokenize", "x" * (65 * 2**20))
    assert len(str(caught.value).splitlines()) == 3 and "64 MiB" in caught.value.why
    assert not worker.is_busy
    assert outcome_of(lambda: worker.call(0, "tokenize", "x")) == 7


def test_a_value_that_cannot_pass_is_refused_and_the_engine_lives(started: Callable[[str], Worker]) -> None:
    worker = started('take()\nframe({"reply": 2, "value": 7})\ntake()')
    with pytest.raises(UsageError, match="cannot be sent") as caught:
        worker.call(0, "session", {1, 2})
    assert len(str(caught.value).splitlines()) == 3 and not worker.is_busy
    assert outcome_of(lambda: worker.call(0, "tokenize", "x")) == 7


def test_a_stream_whose_call_is_refused_does_not_keep_the_engine_busy(started: Callable[[str], Worker]) -> None:
    refused = {"kind": "EngineError", "what": "no", "why": "", "fix": "none"}
    worker = started(f"take()\nframe({{'reply': 1, 'error': {refused}}})\ntake()")
    error = outcome_of(lambda: worker.call(1, "start", "x", sink=worker.stream_of(lambda event: None)))
    assert isinstance(error, EngineError)
    assert not worker.is_busy, "an idle process sends no signs of life and would count as hanging"


def test_a_dead_process_that_will_not_go_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does whose disk does not answer: it is killed, and stays."""
    goes = threading.Event()

    def start(cpus: Sequence[int]) -> Started:
        process, events = scripted("take()\nframe({'nonsense': 1})\ntime.sleep(60)")(cpus)
        really_wait = process.wait

        def wait(timeout: float | None = None) -> int:
            if not goes.wait(timeout):
                raise subprocess.TimeoutExpired("engine", timeout or 0.0)
            return really_wait()

        process.wait = wait  # type: ignore[method-assign]
        return process, events

    monkeypatch.setattr("toolkit.worker.start_process", start)
    monkeypatch.setattr("toolkit.worker._EXIT_S", 0.05)
    worker = Worker("bundle")
    ended: list[Any] = []
    error = outcome_of(lambda: worker.call(1, "start", "x", sink=worker.stream_of(ended.append)))
    assert isinstance(error, EngineCrashed) and error.cause is CrashCause.GARBAGE and len(ended) == 1
    assert worker._keeper.is_alive(), "it is buried all the same, once it goes"
    goes.set()
    worker._keeper.join(LIMIT_S)
    assert not worker._keeper.is_alive()


def test_descriptors_beyond_a_thousand_are_watched_too(started: Callable[[str], Worker]) -> None:
    resource = pytest.importorskip("resource", reason="limits of a process are POSIX")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1400
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip("this system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        worker = started('take()\nframe({"reply": 1, "value": 7})\ntake()')
        assert outcome_of(lambda: worker.call(0, "tokenize", "x")) == 7
        worker.close()
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_result_of_the_wrong_kind_is_named(started: Callable[[str], Worker]) -> None:
    replies = [{"reply": number, "value": value} for number, value in ((1, 3), (2, ["a"]), (3, 7), (4, "x"))]
    worker = started(f"for reply in {replies!r}:\n    take()\n    frame(reply)\ntake()")
    engine = RemoteEngine(worker, Handle(1, frozenset(), {"n_start_tokens": 0}))
    asked: list[Callable[[], Any]] = [
        lambda: engine.tokenize("x"),
        lambda: engine.tokenize("x"),
        lambda: engine.render([Message("user", "x")]),
        lambda: engine.session(Sampling(), max_tokens=1),
    ]
    for ask in asked:
        error = outcome_of(ask)
        assert isinstance(error, EngineError) and "did not return" in error.what and len(str(error).splitlines()) == 3


def test_a_log_handler_that_fails_does_not_end_the_engine(started: Callable[[str], Worker]) -> None:
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the app's disk is full")

    handler, logger = Failing(), logging.getLogger("engine.of.this.test")
    logger.addHandler(handler)
    try:
        worker = started('take()\nframe({"log": "engine.of.this.test", "level": 40, "text": "x"})\nframe({"reply": 1, "value": 7})\ntake()')
        assert outcome_of(lambda: worker.call(0, "tokenize", "x")) == 7
    finally:
        logger.removeHandler(handler)
