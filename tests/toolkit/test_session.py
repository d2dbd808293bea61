from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_bundle import CONTEXT_LENGTH, VOCAB_SIZE
from toolkit.backends.base import Message
from toolkit.engine import Engine
from toolkit.errors import UsageError
from toolkit.session import FinishReason, Session

pytestmark = pytest.mark.usefixtures("module_cache")

PROMPT = "check the pump"
LONG = "check the pump and the valve of the station. " * 200


@pytest.fixture(scope="module", params=[True, False], ids=["own process", "this process"])
def engine(chat_bundle: Path, module_cache: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine.open(chat_bundle, context_length=CONTEXT_LENGTH, isolated=request.param) as engine:
        yield engine


def say(session: Session, text: str = PROMPT, **options: Any) -> str:
    return "".join(piece.text for piece in session.send(text, **options))


@pytest.fixture(scope="module")
def greedy(engine: Engine) -> str:
    """The first 60 tokens of the likeliest answer."""
    return say(engine.session(), max_tokens=60)


def test_an_answer_comes_in_pieces_that_add_up(engine: Engine, greedy: str) -> None:
    session = engine.session()
    pieces = list(session.send(PROMPT, max_tokens=60))
    assert len(pieces) > 40
    assert "".join(piece.text for piece in pieces) == greedy
    assert all(piece.text for piece in pieces)
    assert session.messages == (Message("user", PROMPT), Message("assistant", greedy))


def test_metrics_count_what_was_done(engine: Engine) -> None:
    session = engine.session()
    assert session.metrics is None and session.finish_reason is None
    pieces = list(session.send(PROMPT, max_tokens=60))
    metrics = session.metrics
    assert metrics is not None
    rendered = f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
    assert metrics.n_prompt_tokens == len(engine.tokenize(rendered)) + 1, "the start token counts"
    assert metrics.n_generated_tokens == 60
    assert 50 <= sum(piece.n_tokens for piece in pieces) <= 60, "now and then two tokens come in one piece"
    assert metrics.ttft_s is not None and 0 < metrics.ttft_s < metrics.total_s
    assert metrics.prefill_tokens_per_s and metrics.decode_tokens_per_s
    assert metrics.peak_rss_bytes and metrics.peak_rss_bytes > 2**20
    assert (metrics.context_length, metrics.backend, metrics.load_s) == (CONTEXT_LENGTH, "litert", engine.load_s)


def test_a_second_turn_prefills_only_what_is_new_and_equals_a_fresh_conversation(engine: Engine) -> None:
    session = engine.session()
    first = say(session, max_tokens=30)
    assert session.finish_reason is FinishReason.LENGTH
    second = say(session, "and the valve", max_tokens=30)
    fresh = engine.session(messages=[Message("user", PROMPT), Message("assistant", first)])
    assert say(fresh, "and the valve", max_tokens=30) == second
    assert session.metrics is not None and fresh.metrics is not None
    assert session.metrics.n_prompt_tokens < 30 < fresh.metrics.n_prompt_tokens


def test_the_same_seed_gives_the_same_answer_and_another_another(engine: Engine) -> None:
    answers = [say(engine.session(temperature=1.0, seed=seed), max_tokens=30) for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_without_a_seed_one_is_drawn_and_repeats_the_answer(engine: Engine) -> None:
    session = engine.session(temperature=1.0)
    text = say(session, max_tokens=30)
    assert say(engine.session(temperature=1.0, seed=session.sampling.seed), max_tokens=30) == text


def test_temperature_zero_does_not_depend_on_the_seed(engine: Engine, greedy: str) -> None:
    assert say(engine.session(seed=1), max_tokens=60) == say(engine.session(seed=2), max_tokens=60) == greedy


@pytest.mark.parametrize("options", [{"temperature": -1.0}, {"top_k": 0}, {"top_k": VOCAB_SIZE + 1}, {"top_p": 0.0}, {"seed": -1}])
def test_sampling_out_of_range_is_refused_when_the_session_is_made(engine: Engine, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        engine.session(**options)


@pytest.mark.parametrize("options", [{"max_tokens": 0}, {"max_tokens": -1}, {"stop": ""}, {"stop": ["x", ""]}])
def test_limits_out_of_range_are_refused_when_send_is_called(engine: Engine, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        engine.session().send(PROMPT, **options)


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_a_prompt_that_is_no_text_is_refused(engine: Engine, text: str) -> None:
    with pytest.raises(UsageError, match="the prompt"):
        engine.session().send(text)


def test_a_prompt_longer_than_the_context_is_refused_with_the_numbers(engine: Engine) -> None:
    session = engine.session()
    with pytest.raises(UsageError, match="does not fit") as caught:
        say(session, LONG * 3)
    assert str(CONTEXT_LENGTH) in caught.value.why
    assert say(session, max_tokens=5)


def test_a_limit_of_one_token_gives_one(engine: Engine, greedy: str) -> None:
    session = engine.session()
    text = say(session, max_tokens=1)
    assert text and greedy.startswith(text)
    assert session.metrics is not None and session.metrics.n_generated_tokens == 1
    assert session.metrics.ttft_s is not None


@pytest.mark.parametrize("start", range(5, 12))
@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_stop_string_ends_the_answer_wherever_the_pieces_break(engine: Engine, greedy: str, start: int, length: int) -> None:
    stop = greedy[start : start + length]
    session = engine.session()
    assert say(session, max_tokens=60, stop=stop) == greedy.partition(stop)[0]
    assert session.finish_reason is FinishReason.STOP


def test_a_stop_string_that_never_comes_changes_nothing(engine: Engine, greedy: str) -> None:
    session = engine.session()
    assert say(session, max_tokens=60, stop=[greedy[-3:] + "never", "日本"]) == greedy
    assert session.finish_reason is FinishReason.LENGTH


def test_bytes_that_are_no_text_neither_end_the_process_nor_reach_the_reader(engine: Engine) -> None:
    """Drawn at this temperature, bytes come in any order; litert_lm's own Conversation ends the process on most of these seeds."""
    for seed in range(8):
        text = say(engine.session(temperature=100.0, top_k=300, top_p=1.0, seed=seed), max_tokens=1000)
        assert text.encode("utf-8").decode("utf-8") == text


def test_a_model_that_ends_by_itself_stops(engine: Engine) -> None:
    session = engine.session(temperature=100.0, top_k=300, top_p=1.0, seed=3)
    say(session, max_tokens=3000)
    assert session.finish_reason is FinishReason.STOP
    assert session.metrics is not None and session.metrics.n_generated_tokens < 3000


def cancelled_after(session: Session, n_pieces: int, text: str = PROMPT) -> str:
    """Cancel from another thread while the answer is read."""
    shown = ""
    for index, piece in enumerate(session.send(text, max_tokens=4000)):
        shown += piece.text
        if index == n_pieces:
            other = threading.Thread(target=session.cancel)
            other.start()
            other.join()
    return shown


def test_cancelling_from_another_thread_ends_the_answer_and_leaves_the_session_usable(engine: Engine) -> None:
    session = engine.session()
    shown = cancelled_after(session, 10)
    assert session.finish_reason is FinishReason.CANCELLED
    assert session.messages == (Message("user", PROMPT), Message("assistant", shown))
    assert session.metrics is not None and 10 < session.metrics.n_generated_tokens < 4000
    after = say(session, "and the valve", max_tokens=20)
    fresh = engine.session(messages=[Message("user", PROMPT), Message("assistant", shown)])
    assert say(fresh, "and the valve", max_tokens=20) == after


def test_cancelling_again_and_again_leaves_the_session_usable(engine: Engine) -> None:
    session = engine.session()
    for n_pieces in (0, 1, 5):
        cancelled_after(session, n_pieces)
    assert say(session, max_tokens=5)


def test_a_question_cancelled_before_its_first_word_is_forgotten(engine: Engine, greedy: str) -> None:
    session = engine.session()
    answer = session.send(LONG, max_tokens=4000)
    waiting = threading.Thread(target=lambda: next(answer, None))
    waiting.start()
    while not session.is_answering and waiting.is_alive():
        pass
    session.cancel()
    waiting.join()
    rest = list(answer)
    assert session.finish_reason is FinishReason.CANCELLED
    if not rest and not session.messages:  # the usual case: the prefill was still running
        assert session.metrics is not None and session.metrics.ttft_s is None
        assert say(session, max_tokens=60) == greedy


def test_cancel_without_an_answer_does_nothing(engine: Engine, greedy: str) -> None:
    session = engine.session()
    session.cancel()
    assert say(session, max_tokens=60) == greedy
    session.cancel()
    assert session.finish_reason is FinishReason.LENGTH


def test_breaking_out_of_the_loop_cancels_and_keeps_what_was_shown(engine: Engine) -> None:
    session = engine.session()
    shown = ""
    for piece in session.send(PROMPT, max_tokens=4000):
        shown += piece.text
        break
    assert session.finish_reason is FinishReason.CANCELLED
    assert session.messages[-1] == Message("assistant", shown)
    assert say(session, max_tokens=5)


def test_an_iterator_that_is_never_used_does_nothing(engine: Engine, greedy: str) -> None:
    session = engine.session()
    session.send("never asked")
    assert not session.is_answering and session.messages == ()
    assert say(session, max_tokens=60) == greedy


def test_a_second_send_while_one_runs_is_refused(engine: Engine) -> None:
    session = engine.session()
    running = session.send(PROMPT, max_tokens=50)
    next(running)
    with pytest.raises(UsageError, match="still running"):
        next(session.send(PROMPT))
    assert list(running) and session.finish_reason is FinishReason.LENGTH


def test_an_exception_in_the_loop_ends_the_answer(engine: Engine) -> None:
    session = engine.session()
    with pytest.raises(KeyboardInterrupt):
        for _ in session.send(PROMPT, max_tokens=4000):
            raise KeyboardInterrupt
    assert session.finish_reason is FinishReason.CANCELLED and not session.is_answering
    assert say(session, max_tokens=5)


def test_a_closed_session_refuses_and_may_be_closed_again(engine: Engine) -> None:
    session = engine.session()
    running = session.send(PROMPT, max_tokens=4000)
    next(running)
    session.close()
    session.close()
    assert list(running) == []
    with pytest.raises(UsageError, match="closed"):
        say(session)


def test_a_session_nobody_holds_frees_its_cache(engine: Engine) -> None:
    session = engine.session()
    say(session, max_tokens=5)
    cache, closed = session._cache, list[bool]()
    assert cache is not None
    close = cache.native.close
    cache.native.close = lambda: (closed.append(True), close())[1]  # type: ignore[method-assign]
    del session
    assert closed == [True]


def test_async_gives_the_same_answer_without_blocking_the_loop(engine: Engine, greedy: str) -> None:
    async def ask() -> tuple[str, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        text = ""
        async for piece in engine.session().asend(PROMPT, max_tokens=60):
            text += piece.text
        ticking.cancel()
        return text, ticks

    text, ticks = asyncio.run(ask())
    assert text == greedy
    assert ticks > 10


def test_cancelling_the_task_cancels_the_answer(engine: Engine) -> None:
    session = engine.session()

    async def ask() -> None:
        async for _ in session.asend(PROMPT, max_tokens=4000):
            pass

    async def main() -> None:
        task = asyncio.create_task(ask())
        while not session.is_answering:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert session.finish_reason is FinishReason.CANCELLED and not session.is_answering
    assert say(session, max_tokens=5)


def test_a_task_cancelled_before_the_answer_begins_leaves_nothing_running(engine: Engine) -> None:
    session = engine.session()

    async def main() -> None:
        task = asyncio.create_task(anext(aiter(session.asend(PROMPT, max_tokens=4000))))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while session.is_answering:
            await asyncio.sleep(0.001)

    asyncio.run(main())
    assert say(session, max_tokens=5)


def test_a_plain_session_continues_its_own_text(base_bundle: Path) -> None:
    with Engine.open(base_bundle) as engine:
        session = engine.plain_session()
        first = say(session, "the quick brown", max_tokens=10)
        second = say(session, " fox", max_tokens=10)
        assert say(engine.plain_session(), f"the quick brown{first} fox", max_tokens=10) == second
        assert session.finish_reason is FinishReason.LENGTH
        with pytest.raises(UsageError, match="the prompt"):
            say(engine.plain_session(), "")
