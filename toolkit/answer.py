"""One answer while it is being generated: turns an engine's events into pieces, a reason and metrics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from toolkit.backends.base import Counts, NativeSession, Sink, StreamEnd, StreamEvent
from toolkit.errors import EngineError
from toolkit.stops import StopFilter

if TYPE_CHECKING:
    from toolkit.pacing import AnswerWatch


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"  # the model ended it, or a stop string was found
    LENGTH = "length"  # max_tokens were generated, or the context is full
    CANCELLED = "cancelled"  # `cancel` was called, or the caller stopped listening
    BUDGET = "budget"  # a limit of the Budget was reached
    CRASHED = "crashed"  # the engine failed; what came before is kept


_INTERRUPTED = (FinishReason.CANCELLED, FinishReason.CRASHED)


@dataclass(frozen=True)
class Piece:
    """Text as it is generated, and how many pieces the engine delivered it in (about one a token)."""

    text: str
    n_tokens: int


class Answer:
    """State of one `send`. Events may be put from any thread; `take` and what follows belong to the caller's."""

    def __init__(
        self,
        native: NativeSession,
        sink: Sink,
        *,
        started: float,
        stops: Sequence[str],
        n_prompt_tokens: int,
        max_tokens: int,
        is_capped: bool,
    ) -> None:
        """`max_tokens` is what budget and context leave; `is_capped` says that the budget left less than was asked."""
        self._native, self._sink, self._stops = native, sink, StopFilter(stops)
        self._n_prompt_tokens, self._max_tokens, self._is_capped = n_prompt_tokens, max_tokens, is_capped
        self._started = started
        self._first: float | None = None
        self._last = self._ended = started
        self._n_pieces = self._n_held = 0
        self._interrupted: FinishReason | None = None
        self._has_native_ended = False
        self.text = ""
        self.watch: AnswerWatch | None = None  # what the governor does meanwhile, and what it costs
        self.reason: FinishReason | None = None
        self.counts: Counts | None = None

    @property
    def is_in_cache(self) -> bool:
        """Whether the KV cache holds exactly what was shown (and a stop token, if `has_stop_token`): a later turn may go on from it."""
        return self._has_native_ended and not self._stops.has_stopped and self.reason not in (None, *_INTERRUPTED)

    @property
    def has_stop_token(self) -> bool:
        """Whether the model itself ended its answer."""
        return self.is_in_cache and self.reason is FinishReason.STOP

    @property
    def is_interrupted(self) -> bool:
        """Whether somebody ended it."""
        return self._interrupted is not None

    def interrupt(self, reason: FinishReason) -> None:
        """End the answer now, from any thread. The first reason counts."""
        if self._interrupted is None:
            self._interrupted = reason
            self._native.cancel()
            self._sink("")  # wakes the caller

    def take(self, event: StreamEvent) -> Piece | None:
        """Digest one event; returns what may be shown. Sets `reason` when the answer is over.

        Raises:
            EngineError: The engine failed; `text` keeps what was shown.
        """
        if self._interrupted is not None:
            return self._over(self._interrupted, "")
        if isinstance(event, StreamEnd):
            return self._take_end(event)
        if event:
            self._count()
        shown = self._stops.feed(event)
        if self._stops.has_stopped:
            self._native.cancel()
            return self._over(FinishReason.STOP, shown)
        return self._piece(shown)

    def _count(self) -> None:
        self._last = time.perf_counter()
        if self._first is None and self.watch is not None:
            self.watch.note_text()
        self._first = self._first or self._last
        self._n_pieces += 1
        self._n_held += 1

    def _take_end(self, end: StreamEnd) -> Piece | None:
        """An engine may call a full context an error; the counts tell which it was."""
        self._has_native_ended = True
        shown = self._stops.flush()
        counts = self._native.counts()
        if end.error is not None and counts.n_generated_tokens < self._max_tokens:
            self._over(FinishReason.CRASHED, shown)
            fix = "ask again; if it stays, check the bundle: toolkit verify BUNDLE"
            raise EngineError("the engine failed while it was answering", why=end.error, fix=fix)
        self.counts = counts
        return self._over(self._natural_reason(counts), shown)

    def _natural_reason(self, counts: Counts) -> FinishReason:
        """A stop token that came exactly as the last one allowed cannot be told from a cut, and counts as one."""
        if self._stops.has_stopped or counts.n_generated_tokens < self._max_tokens:
            return FinishReason.STOP
        return FinishReason.BUDGET if self._is_capped else FinishReason.LENGTH

    def _over(self, reason: FinishReason, shown: str) -> Piece | None:
        self.reason, self._ended = reason, time.perf_counter()
        return self._piece(shown)

    def _piece(self, shown: str) -> Piece | None:
        if not shown:
            return None
        piece = Piece(shown, self._n_held)
        self._n_held = 0
        self.text += shown
        return piece

    def abandon(self) -> None:
        """The caller stops listening, before the end or at it."""
        if self.reason is None:
            self.interrupt(FinishReason.CANCELLED)
            self._over(self._interrupted or FinishReason.CANCELLED, "")
        if self.watch is not None:
            self.watch.close()

    @property
    def ttft_s(self) -> float | None:
        """From the start to the first text."""
        return None if self._first is None else self._first - self._started

    @property
    def total_s(self) -> float:
        """From the start to the end."""
        return self._ended - self._started

    @property
    def figures(self) -> Counts:
        """The engine's own figures, or ours by the clock when it was cut short and tells none."""
        if self.counts is not None:
            return self.counts
        prefill = self._n_prompt_tokens / self.ttft_s if self.ttft_s else None
        decoding_s = self._last - self._first if self._first is not None else 0.0
        decode = (self._n_pieces - 1) / decoding_s if decoding_s > 0 else None
        return Counts(self._n_prompt_tokens, self._n_pieces, prefill, decode)
