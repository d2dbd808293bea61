"""What reaches an answer while it is only being begun, and what a load that fails leaves behind, on a backend without weights."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.toolkit.fake_backend import FakeBackend, chat_template
from toolkit.budget import Budget
from toolkit.bundle import Bundle
from toolkit.engine import Engine
from toolkit.errors import EngineError, UsageError
from toolkit.session import FinishReason, Session

LIMIT_S = 30.0


@pytest.fixture
def engine(backend: FakeBackend, fake_bundle: Bundle) -> Iterator[Engine]:
    with Engine.open(fake_bundle, expected_tokens=64, budget=Budget(tokens=10_000)) as engine:
        yield engine


def say(session: Session, text: str = "a", max_tokens: int = 20) -> str:
    return "".join(piece.text for piece in session.send(text, max_tokens=max_tokens))


def while_rendering(backend: FakeBackend, act: Callable[[], object]) -> None:
    """Let something happen while the prompt is rendered: the answer is begun, and nothing of it runs yet."""

    def template(messages: object) -> str:
        backend.engine.template = chat_template
        act()
        return chat_template(messages)  # type: ignore[arg-type]

    backend.engine.template = template


def test_a_cancel_before_the_stream_begins_is_not_lost(engine: Engine, backend: FakeBackend) -> None:
    session = engine.session()
    while_rendering(backend, session.cancel)
    assert say(session) == "" and session.finish_reason is FinishReason.CANCELLED
    assert backend.engine.started == [] and session.messages == () and not session.is_answering
    backend.engine.answers = ["yes"]
    assert say(session) == "yes", "only that one answer was cancelled"


def test_a_cancel_while_the_stream_begins_reaches_the_engine(engine: Engine, backend: FakeBackend) -> None:
    session = engine.session()
    backend.engine.answers, backend.engine.on_start = ["yes"], session.cancel
    assert say(session) == "" and session.finish_reason is FinishReason.CANCELLED
    assert len(backend.engine.started) == 1
    [native] = backend.engine.sessions
    assert native.n_cancelled > 1 and native.n_closed == 1, "what was cancelled before it began would run on"


def test_a_session_closed_while_it_begins_runs_nothing_and_frees_its_cache(engine: Engine, backend: FakeBackend) -> None:
    session = engine.session()
    while_rendering(backend, session.close)
    assert say(session) == "" and backend.engine.started == []
    assert [native.n_closed for native in backend.engine.sessions] == [1]
    with pytest.raises(UsageError, match="closed"):
        say(session)


def test_a_task_cancelled_while_the_answer_begins_starts_no_stream(engine: Engine, backend: FakeBackend) -> None:
    session, rendering, go_on = engine.session(), threading.Event(), threading.Event()
    while_rendering(backend, lambda: (rendering.set(), go_on.wait(LIMIT_S)))

    async def ask() -> None:
        async for _ in session.asend("a"):
            pass

    async def main() -> None:
        task = asyncio.create_task(ask())
        await asyncio.to_thread(rendering.wait, LIMIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        while session.is_answering or session.finish_reason is None:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
    assert backend.engine.started == [] and session.finish_reason is FinishReason.CANCELLED


def test_an_answer_that_ends_does_not_wait_for_an_engine_that_loads(engine: Engine) -> None:
    """The end of an `asend` runs on the event loop."""
    spent = threading.Thread(target=engine.spend_tokens, args=[3], daemon=True)
    with engine.lock:
        spent.start()
        spent.join(LIMIT_S)
        assert not spent.is_alive()
    assert engine.grant_tokens(10_000) == 9_997


def test_sessions_may_be_made_while_others_lose_their_caches(engine: Engine) -> None:
    made: list[Session] = []
    done = threading.Event()

    def make() -> None:
        while not done.is_set() and len(made) < 3000:
            made.append(engine.session())

    maker = threading.Thread(target=make)
    maker.start()
    try:
        for _ in range(300):
            engine._sessions.drop_caches()
    finally:
        done.set()
        maker.join()
    assert made


def test_a_load_that_failed_may_be_tried_again(engine: Engine, backend: FakeBackend) -> None:
    backend.engine.answers = ["yes", "no", "long"]
    session = engine.session()
    assert say(session, max_tokens=10) == "yes"
    backend.failures = [EngineError("the disk is away", fix="plug it in"), EngineError("the disk is still away", fix="plug it in")]
    with pytest.raises(EngineError, match="the disk is away"):
        say(session, max_tokens=400)
    with pytest.raises(EngineError, match="still away"):
        say(session, max_tokens=10)
    assert say(session, max_tokens=10) == "no", "what was loaded before is loaded again"
    assert say(session, max_tokens=400) == "long" and engine.context_length > 400
    assert backend.opened[:2] == [64, 64]


def test_a_closed_engine_stays_closed(engine: Engine, backend: FakeBackend) -> None:
    session = engine.session()
    engine.close()
    for _ in range(2):
        with pytest.raises(UsageError, match="closed"):
            say(session)
    with pytest.raises(UsageError, match="closed"):
        engine.tokenize("x")
    assert backend.opened == [64]
