"""One conversation with an engine: what was said, and its KV cache."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from toolkit.answer import Answer, FinishReason, Piece
from toolkit.backends.base import Message, Sampling, Sink, StreamEvent
from toolkit.errors import EngineError, UsageError
from toolkit.metrics import Metrics, metrics_of
from toolkit.pacing import AnswerWatch
from toolkit.request import Request, checked_request
from toolkit.session_cache import Cache

if TYPE_CHECKING:
    from toolkit.engine import Engine

__all__ = ["FinishReason", "Message", "Piece", "Session"]


@dataclass(eq=False)
class _Start:
    """An answer that is being begun, which may take as long as loading the engine; `cancel` reaches it here."""

    is_cancelled: bool = False


class Session:
    """A conversation. Made by `Engine.session` or `Engine.plain_session`.

    One answer at a time; `cancel` may be called from any thread. A session keeps no thread and no native memory while it
    is idle except its KV cache, which `close` frees. Several sessions share one engine.

    Attributes:
        metrics: What the last answer cost; None before the first.
        finish_reason: Why the last answer ended; None before the first.
        parsed: The last answer as its schema's value, once it was heard to its end; None where it was cut, or had no schema.
        sampling: How tokens are chosen, seed included.
    """

    def __init__(self, engine: Engine, messages: tuple[Message, ...], sampling: Sampling, *, is_chat: bool) -> None:
        self._engine, self._is_chat = engine, is_chat
        self._messages = list(messages)
        self._cache: Cache | None = None
        self._active: Answer | None = None
        self._starts: list[_Start] = []
        self._timer: threading.Timer | None = None
        self._is_closed = False
        self.sampling = sampling
        self.metrics: Metrics | None = None
        self.finish_reason: FinishReason | None = None
        self.parsed: Any = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said so far. A question whose answer was cancelled before its first text is not part of it."""
        return tuple(self._messages)

    def send(self, text: str, *, max_tokens: int = 256, stop: str | Iterable[str] = (), schema: Any = None) -> Iterator[Piece]:
        """Ask, and iterate over the answer as it is generated. Nothing happens before the first piece is asked for.

        Breaking out of the loop cancels the answer; what was shown stays part of the conversation.

        Args:
            text: The user's message, or in a plain session the text to go on from.
            max_tokens: Most tokens to generate.
            stop: Strings that end the answer; they are not shown, nor is what follows.
            schema: What the answer is to be: see `toolkit.schema`. Its value is in `parsed` afterwards.

        Raises:
            UsageError: A limit is out of range, the prompt is longer than the context, an answer is still running, or the schema is none.
            BackendUnavailableError: This engine holds answers to no schema.
            BudgetError: The budget's tokens are used up.
            EngineError: The engine refused the prompt or failed.
        """
        return self._pieces(self._request(text, max_tokens, stop, schema))

    def asend(self, text: str, *, max_tokens: int = 256, stop: str | Iterable[str] = (), schema: Any = None) -> AsyncIterator[Piece]:
        """`send` for asyncio: the event loop is never blocked, and cancelling the task cancels the answer."""
        return self._async_pieces(self._request(text, max_tokens, stop, schema))

    @property
    def is_answering(self) -> bool:
        """Whether an answer was begun and has not ended."""
        return self._active is not None

    def cancel(self) -> None:
        """End the running answer, if any; returns at once, from any thread or signal handler.

        The caller of `send` sees its iterator end at once too, or as soon as the engine is loaded if it is just being loaded. An
        engine that is in the middle of a long prefill finishes it in the background; the next `send` waits for that.
        """
        for start in list(self._starts):  # first these, then the answer: one that becomes active between the two is seen by either
            start.is_cancelled = True
        self.interrupt(FinishReason.CANCELLED)

    def interrupt(self, reason: FinishReason) -> None:
        """For the engine: end the running answer, if any."""
        if (answer := self._active) is not None:
            answer.interrupt(reason)

    def close(self) -> None:
        """Cancel what runs and free the KV cache. May be called twice."""
        self._is_closed = True
        is_beginning = bool(self._starts)
        self.cancel()
        if not is_beginning:  # else its cache is in use, and freed at its end
            self.drop_cache()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_cache", None) is not None:
            self.drop_cache()

    def _request(self, text: str, max_tokens: int, stop: str | Iterable[str], schema: Any) -> Request:
        request = checked_request(text, max_tokens, stop, schema, context_length=self._engine.max_context_length)
        if not self._is_chat and not text and not self._messages:
            raise UsageError("the prompt is empty", why="there is nothing to continue", fix="give at least one word")
        return request

    def _pieces(self, request: Request) -> Iterator[Piece]:
        events: queue.SimpleQueue[StreamEvent] = queue.SimpleQueue()
        answer = self._begin(request, events.put, _Start())
        try:
            while answer.reason is None:
                if (piece := self._take(answer, events.get())) is not None:
                    yield piece
        finally:
            self._end(request, answer)
        self.parsed = request.parsed(answer)

    async def _async_pieces(self, request: Request) -> AsyncIterator[Piece]:
        loop, events = asyncio.get_running_loop(), asyncio.Queue[StreamEvent]()

        def sink(event: StreamEvent) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(events.put_nowait, event)

        start = _Start()
        begun = loop.run_in_executor(None, self._begin, request, sink, start)
        try:
            answer = await asyncio.shield(begun)
        except asyncio.CancelledError:
            start.is_cancelled = True
            begun.add_done_callback(partial(self._end_unheard, request))
            raise
        try:
            while answer.reason is None:
                if (piece := self._take(answer, await events.get())) is not None:
                    yield piece
        finally:
            self._end(request, answer)
        self.parsed = request.parsed(answer)

    def _take(self, answer: Answer, event: StreamEvent) -> Piece | None:
        try:
            return answer.take(event)
        except EngineError as error:
            if (crash := self._engine.crash) is None:
                raise
            raise crash from error

    def _begin(self, request: Request, sink: Sink, start: _Start) -> Answer:
        """Make room, start the engine's stream and return its state. The engine's lock keeps sessions from racing here."""
        started = time.perf_counter()
        self.parsed = None
        self._starts.append(start)
        try:
            with self._engine.lock:
                self._check_idle()
                watch = self._engine.governed.watch()
                try:
                    answer = self._started(request, sink, started, start, watch)
                except BaseException:
                    watch.close()
                    self._active = None
                    self.drop_cache()
                    raise
        finally:
            self._starts.remove(start)
        if (seconds := self._engine.budget.seconds) is not None:
            self._timer = threading.Timer(seconds, answer.interrupt, [FinishReason.BUDGET])
            self._timer.daemon = True
            self._timer.start()
        return answer

    def _started(self, request: Request, sink: Sink, started: float, start: _Start, watch: AnswerWatch) -> Answer:
        n_granted = self._engine.grant_tokens(request.max_tokens)
        prompt = self._prompt(request.text)
        cache, added, n_new = self._fit(prompt, n_granted)
        cache.take_prompt(prompt, n_new=n_new)
        answer = Answer(
            cache.native,
            sink,
            started=started,
            stops=request.stops,
            n_prompt_tokens=n_new,
            max_tokens=min(n_granted, self._engine.context_length - cache.n_tokens),
            is_capped=n_granted < request.max_tokens,
        )
        answer.watch = watch
        self._active = answer
        if not start.is_cancelled:
            cache.native.start(added, sink=watch.gated(sink, lambda: answer.is_interrupted), **request.options)
        if start.is_cancelled:  # before the stream began, when there was nothing to cancel yet, or while it did
            answer.interrupt(FinishReason.CANCELLED)
            cache.native.cancel()
        return answer

    def _check_idle(self) -> None:
        if self._is_closed:
            raise UsageError("the session is closed", fix="ask the engine for a new one: engine.session()")
        if self._active is not None:
            fix = "finish, cancel or close it first, or use a second session"
            raise UsageError("an answer is still running in this session", why="a session answers one message at a time", fix=fix)

    def _prompt(self, text: str) -> str:
        """All the text that the answer is to follow."""
        before = self._messages
        return self._engine.native.render([*before, Message("user", text)]) if self._is_chat else "".join(m.content for m in before) + text

    def _fit(self, prompt: str, max_tokens: int) -> tuple[Cache, str, int]:
        """A KV cache with room for the prompt and, as far as the context reaches, the answer.

        Returns:
            The cache, the end of `prompt` that is not in it yet, and how many tokens that is.
        """
        cache, added, n_new = self._open_cache(prompt, max_tokens)
        most = self._engine.max_context_length
        self._check_fits(cache, n_new, max_tokens, most)
        if self._engine.make_room(min(cache.n_tokens + n_new + max_tokens, most)):
            cache, added, n_new = self._open_cache(prompt, max_tokens)
            self._check_fits(cache, n_new, max_tokens, self._engine.context_length)  # less than asked for, if more failed to load
        return cache, added, n_new

    def _check_fits(self, cache: Cache, n_new: int, max_tokens: int, most: int) -> None:
        n_total = cache.n_tokens + n_new
        if n_total >= most:
            raise UsageError(
                f"the prompt of {n_new} tokens does not fit",
                why=f"the context holds {most} tokens; the conversation uses {cache.n_tokens}, and the answer needs one or more",
                fix="shorten it, or begin a new session" + self._engine.larger_context_hint(n_total + max_tokens),
            )

    def _open_cache(self, prompt: str, max_tokens: int) -> tuple[Cache, str, int]:
        """The cache of the last turn if `prompt` goes on from what it holds, else a new one."""
        native = self._engine.native
        if self._cache is not None and self._cache.max_tokens == max_tokens:
            if (added := self._cache.continuation(prompt, native, self._engine.bundle.manifest.stop_token_ids)) is not None:
                ids = native.tokenize(added)
                if native.tokenize(prompt)[-len(ids) :] == ids:  # else the tokens would not be those of the whole prompt
                    return self._cache, added, len(ids)
        self.drop_cache()
        self._cache = Cache(native.session(self.sampling, max_tokens=max_tokens), max_tokens)
        return self._cache, prompt, len(native.tokenize(prompt)) + native.n_start_tokens

    def _end(self, request: Request, answer: Answer) -> None:
        """Whatever happened: keep what was said, measure, and free what cannot be used again."""
        answer.abandon()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if answer.text or answer.is_in_cache:
            self._messages += [Message("user", request.text), Message("assistant", answer.text)]
        figures = answer.figures
        if (cache := self._cache) is not None:  # `close` may take it away meanwhile
            cache.take_answer(answer.text, n_tokens=figures.n_generated_tokens, has_stop_token=answer.has_stop_token)
        if self._is_closed or not answer.is_in_cache:
            self.drop_cache()
        self._engine.spend_tokens(figures.n_generated_tokens)
        self.finish_reason = answer.reason
        self.metrics = metrics_of(self._engine, answer)
        if answer.is_in_cache:
            self._engine.note_success()
        self._active = None

    def _end_unheard(self, request: Request, begun: asyncio.Future[Answer]) -> None:
        """The task was cancelled while the answer was being begun."""
        if not begun.cancelled() and begun.exception() is None:
            self._end(request, begun.result())

    def drop_cache(self) -> None:
        """Free the KV cache; the next `send` builds it again from what was said."""
        cache, self._cache = self._cache, None
        if cache is not None:
            cache.native.close()
