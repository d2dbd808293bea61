"""What a backend adds to its engine or session is there on the other side, without a change here."""

from __future__ import annotations

from typing import Any

import pytest

from toolkit.backends.base import Counts, Sampling
from toolkit.worker_proxy import RemoteEngine, RemoteSession
from toolkit.worker_values import Handle


class RecordingWorker:
    """Answers each call with what a test prepared."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.posts: list[tuple[int, str]] = []
        self.answers: list[Any] = []

    def call(self, target: int, method: str, *arguments: Any, doing: str = "", limit_s: float | None = None, **options: Any) -> Any:
        self.calls.append((target, method, arguments, options))
        return self.answers.pop(0)

    def post(self, target: int, method: str) -> None:
        self.posts.append((target, method))


@pytest.fixture
def worker() -> RecordingWorker:
    return RecordingWorker()


def session(worker: RecordingWorker) -> RemoteSession:
    return RemoteSession(worker, Handle(4, frozenset({"clone", "start", "rewind"}), {"can_clone": True}))  # type: ignore[arg-type]


def test_further_methods_are_called_over_there_and_sessions_come_back(worker: RecordingWorker) -> None:
    worker.answers = [Handle(5, frozenset({"start"}), {}), 12]
    clone = session(worker).clone(at=3)
    assert isinstance(clone, RemoteSession) and session(worker).rewind(7) == 12
    assert worker.calls == [(4, "clone", (), {"at": 3}), (4, "rewind", (7,), {})]


def test_plain_attributes_are_known_and_what_is_not_there_is_missing(worker: RecordingWorker) -> None:
    assert session(worker).can_clone is True
    assert not hasattr(session(worker), "score") and not hasattr(session(worker), "_native")
    assert worker.calls == []


def test_cancel_and_close_wait_for_nothing(worker: RecordingWorker) -> None:
    session(worker).cancel()
    session(worker).close()
    assert worker.posts == [(4, "cancel"), (4, "close")] and worker.calls == []


def test_an_engine_makes_sessions_with_whatever_options_its_backend_takes(worker: RecordingWorker) -> None:
    engine = RemoteEngine(worker, Handle(1, frozenset({"session"}), {"n_start_tokens": 2}))  # type: ignore[arg-type]
    worker.answers = [Handle(9, frozenset(), {})]
    engine.session(Sampling(), max_tokens=5, schema="{}")
    assert worker.calls == [(1, "session", (Sampling(),), {"max_tokens": 5, "schema": "{}"})] and engine.n_start_tokens == 2


def test_before_its_stream_has_ended_a_session_has_no_figures(worker: RecordingWorker) -> None:
    assert session(worker).counts() == Counts(0, 0, None, None)
