"""Sessions of engines that compute logits and leave the rest to the caller: prefill, choosing, stopping, text, figures.

An engine gives a `TokenModel` for each KV cache and one `TokenText`; `TokenSession` makes a `NativeSession` of them, so that
all of them sample, stop and count alike.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from toolkit.backends.base import Counts, Message, Sampling, Sink, StreamEnd
from toolkit.backends.constraint import Constraint, Grammars
from toolkit.backends.incremental_text import IncrementalText
from toolkit.backends.sampler import Sampler
from toolkit.backends.streams import StreamThreads, check_room
from toolkit.errors import EngineError, one_line

_N_BEFORE = 6  # tokens of the prompt that the answer's text is decoded after


class TokenModel(Protocol):
    """One KV cache. Used by one thread at a time. May also have `rewind(n_tokens)`, which keeps the first tokens only, and
    `clone()`, which returns another with the same content; both raise ValueError where this very cache cannot do it."""

    @property
    def chunk(self) -> int:
        """Tokens it takes at once: a prompt is fed in such pieces, and a cancelled one ends after the piece that runs."""

    def feed(self, token_ids: Sequence[int]) -> None:
        """Put tokens after what the cache holds."""

    def logits(self) -> Any:
        """(vocab_size,) float32 numpy array: what follows the last token fed."""

    def close(self) -> None:
        """Free the cache."""


class TokenText(Protocol):
    """A tokenizer and a chat template."""

    @property
    def start_ids(self) -> tuple[int, ...]:
        """Tokens a session begins with."""

    def encode(self, text: str) -> list[int]:
        """Token ids, nothing added, control tokens recognized."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text, control tokens left out; U+FFFD for bytes that are no character."""

    def render(self, messages: Sequence[Message]) -> str:
        """A conversation through the template, without `start_ids`. Raises ValueError where the template refuses it."""


class TokenEngine:
    """See `toolkit.backends.base.NativeEngine`.

    Attributes:
        n_start_tokens: Tokens a session begins with.
    """

    def __init__(
        self,
        name: str,
        text: TokenText,
        model: Callable[[], TokenModel],
        *,
        context_length: int,
        stop_ids: Sequence[int],
        n_vocab: int,
        folder: Path,
    ) -> None:
        """`model` makes an empty KV cache; `name` is the engine's, for errors and threads; `folder` holds tokenizer.json."""
        self.grammars = Grammars(folder / "tokenizer.json", stop_ids)
        self.name, self.text, self.context_length, self.n_vocab = name, text, context_length, n_vocab
        self.stop_ids = frozenset(stop_ids)
        self.n_start_tokens = len(text.start_ids)
        self.turn = threading.Lock()  # sessions compute in turns: two at once would share the cores and both be slower
        self._model = model
        self.streams = StreamThreads(name)
        self._is_closed = False

    def tokenize(self, text: str) -> list[int]:
        return self.text.encode(text)

    def render(self, messages: Sequence[Message]) -> str:
        try:
            rendered = self.text.render(messages)
        except ValueError as error:
            raise EngineError(
                "the bundle's chat template failed", why=str(error), fix="toolkit inspect BUNDLE shows the template"
            ) from error
        if not rendered:
            raise EngineError(
                "the bundle's chat template failed", why="it rendered nothing", fix="toolkit inspect BUNDLE shows the template"
            )
        return rendered

    def session(self, sampling: Sampling, *, max_tokens: int) -> TokenSession:
        if self._is_closed:
            raise EngineError(f"the {self.name} engine is closed", fix="open it again: Engine.open(bundle)")
        try:
            return TokenSession(self, self._model(), sampling, max_tokens=max_tokens)
        except Exception as error:  # whatever the library raises: memory, mostly
            raise EngineError(f"{self.name} cannot begin a session", why=one_line(error), fix="use a smaller --context") from error

    def close(self) -> None:
        self._is_closed = True
        self.streams.join()
        del self._model  # with it the weights
        self._model = _closed


def _closed() -> TokenModel:
    raise RuntimeError("the engine is closed")


class TokenSession:
    """See `toolkit.backends.base.NativeSession`."""

    def __init__(self, engine: TokenEngine, model: TokenModel, sampling: Sampling, *, max_tokens: int) -> None:
        self._engine, self._model, self._max_tokens = engine, model, max_tokens
        self._sampler = Sampler(sampling)
        self._cached: list[int] = []
        self._waiting: list[int] = []  # chosen last, and not in the cache before something follows it
        self._lock = threading.Lock()
        self._is_cancelled = threading.Event()
        self._is_running = self._is_closed = False
        self._counts = Counts(0, 0, None, None)

    def start(self, text: str, *, sink: Sink, schema: str | None = None) -> None:
        constraint = None if schema is None else self._engine.grammars.begin(schema)
        added = self._engine.text.encode(text)
        prompt = [*(() if self.checkpoint() else self._engine.text.start_ids), *self._waiting, *added]
        self._check(prompt)
        with self._lock:
            self._refuse_if_busy()
            self._is_running = True
        n_prompt = len(prompt) - len(self._waiting)
        self._engine.streams.run(lambda: self._stream(prompt, n_prompt, sink, constraint))

    def _check(self, prompt: Sequence[int]) -> None:
        check_room(len(prompt), n_held=len(self._cached), context_length=self._engine.context_length)
        if outside := [token_id for token_id in prompt if not 0 <= token_id < self._engine.n_vocab]:
            why = f"the tokenizer gave id {outside[0]}; the weights have {self._engine.n_vocab} tokens"
            raise EngineError("tokenizer and weights do not belong together", why=why, fix="convert the model again")

    def _stream(self, prompt: list[int], n_prompt: int, sink: Sink, constraint: Constraint | None) -> None:
        end = StreamEnd()
        try:
            self._answer(prompt, n_prompt, sink, constraint)
        except Exception as error:  # an engine's own, whatever it is: the caller hears it as the stream's end
            end = StreamEnd(one_line(error))
        with self._lock:
            self._is_running = False
            if self._is_closed:
                self._model.close()
        sink(end)

    def _answer(self, prompt: list[int], n_prompt: int, sink: Sink, constraint: Constraint | None) -> None:
        started = time.perf_counter()
        self._counts = Counts(n_prompt, 0, None, None)
        for begin in range(0, len(prompt), self._model.chunk):
            if self._is_cancelled.is_set():
                return
            self._feed(prompt[begin : begin + self._model.chunk])
        prefill_s = time.perf_counter() - started
        text, n_generated = IncrementalText(self._engine.text.decode, prompt[-_N_BEFORE:]), 0
        started = time.perf_counter()
        while not self._is_cancelled.is_set():
            token_id = self._pick(constraint)
            n_generated += 1
            self._waiting = [token_id]
            decode_s = time.perf_counter() - started
            self._counts = Counts(n_prompt, n_generated, _rate(n_prompt, prefill_s), _rate(n_generated - 1, decode_s))
            if token_id in self._engine.stop_ids:
                break
            if piece := text.add(token_id):
                sink(piece)
            if n_generated == self._max_tokens or len(self._cached) + 1 >= self._engine.context_length:
                break
            self._feed([token_id])
        if piece := text.flush():
            sink(piece)

    def _pick(self, constraint: Constraint | None) -> int:
        with self._engine.turn:
            logits = self._model.logits()
            if constraint is None:
                return self._sampler.pick(logits)
            token_id = self._sampler.pick(constraint.allowed(logits))
        if token_id not in self._engine.stop_ids:
            constraint.take(token_id)
        return token_id

    def _feed(self, token_ids: list[int]) -> None:
        with self._engine.turn:
            self._model.feed(token_ids)
        self._cached += token_ids
        self._waiting = []

    def clone(self) -> TokenSession:
        """Another session with the same content, for as long as this one is not answering. Its seed begins anew."""
        model: TokenModel = self._ask("clone")
        other = TokenSession(self._engine, model, self._sampler.sampling, max_tokens=self._max_tokens)
        other._cached, other._waiting = list(self._cached), list(self._waiting)
        return other

    def checkpoint(self) -> int:
        """A mark for `rewind`: how many tokens the session holds."""
        return len(self._cached) + len(self._waiting)

    def rewind(self, mark: int) -> None:
        """Take out what came after a checkpoint, answers included."""
        if not 0 <= mark <= self.checkpoint():
            raise EngineError(
                f"the session cannot go back to {mark} tokens", why=f"it holds {self.checkpoint()}", fix="use a checkpoint of it"
            )
        kept = [*self._cached, *self._waiting][:mark]
        if mark <= len(self._cached):
            self._ask("rewind", max(0, mark - 1))  # the last token is fed again, for what the engine computes after it
            self._cached, self._waiting = kept[:-1], kept[-1:]

    def log_probabilities(self, token_ids: Sequence[int]) -> list[float]:
        """Natural logarithm of each token's probability of coming next. The session must hold something."""
        import math

        self._refuse_if_busy()
        if not self.checkpoint():
            raise EngineError("nothing comes next in an empty session", fix="send it a text first")
        if self._waiting:
            self._feed(list(self._waiting))
        with self._engine.turn:
            logits = self._model.logits()
        highest = float(logits.max())
        total = highest + math.log(sum(math.exp(float(value) - highest) for value in logits))
        return [float(logits[token_id]) - total for token_id in token_ids]

    def _ask(self, method: str, *arguments: Any) -> Any:
        self._refuse_if_busy()
        if (call := getattr(self._model, method, None)) is None:
            raise EngineError(f"the {self._engine.name} engine cannot {method} a session", fix="begin a new one: engine.session()")
        try:
            with self._engine.turn:
                return call(*arguments)
        except Exception as error:
            why = one_line(error)
            raise EngineError(f"the session cannot {method}", why=why, fix="begin a new one: engine.session()") from error

    def _refuse_if_busy(self) -> None:
        if self._is_closed or self._is_running:
            what = "is closed" if self._is_closed else "is answering"
            raise EngineError(f"the session {what}", fix="begin a new one: engine.session()")

    def cancel(self) -> None:
        self._is_cancelled.set()

    def counts(self) -> Counts:
        return self._counts

    def close(self) -> None:
        self._is_cancelled.set()
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            if is_first and not self._is_running:
                self._model.close()


def _rate(n_tokens: int, seconds: float) -> float | None:
    return n_tokens / seconds if n_tokens > 0 and seconds > 0 else None
