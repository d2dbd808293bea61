"""Greedy decoding of one window by Whisper's timestamp rules, over any model that can take one step.

The rules are OpenAI's (whisper/decoding.py): timestamps come in pairs around text and never go back, the first token is a
timestamp of at most one second, and when timestamps together are likelier than any text, a timestamp is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from toolkit.errors import UsageError
from toolkit.speech.whisper_tokens import N_TIMESTAMPS, Task, WhisperTokens

MAX_FIRST_TIMESTAMP = 50  # steps of 0.02 s


class Step(Protocol):
    """What a model says after one token."""

    @property
    def text_token(self) -> int:
        """The likeliest token that is text and not suppressed."""

    @property
    def log_total(self) -> float:
        """The logarithm of the sum of exp over all logits: a token's log probability is its logit minus this."""

    def logits(self, start: int, stop: int) -> Sequence[float]:
        """Logits of the tokens start to stop - 1."""


class Stepper(Protocol):
    """A model that holds one window's sound and the tokens so far."""

    @property
    def max_context_length(self) -> int:
        """Tokens the cache holds."""

    def step(self, token_id: int, position: int) -> Step:
        """Take the token at `position` (0 begins anew) and say what may follow. A Step is good until the next one."""


@dataclass(frozen=True)
class DecodeOptions:
    """How a window is decoded.

    Args:
        language: A code of the model's; None has it detected (once, from the first window).
        task: Write what is said, or its English translation.
        timestamps: Whether text comes with times.
        max_tokens: Most tokens of one window's answer; None for half the context, as OpenAI does.
        previous: Tokens of text that came before, or of words to expect; the last that fit are used.
    """

    language: str | None = None
    task: Task = "transcribe"
    timestamps: bool = True
    max_tokens: int | None = None
    previous: tuple[int, ...] = ()


@dataclass(frozen=True)
class WindowResult:
    """One window's answer.

    Args:
        token_ids: Text and timestamps, without prompt and end.
        language: The language decoded for; None for an English-only model.
        no_speech_probability: Probability of `<|nospeech|>` right after the start of the transcript.
        mean_log_probability: Mean log probability of the tokens taken, the end included; how sure the model is.
        is_complete: Whether the answer ended by itself, not by `max_tokens`.
    """

    token_ids: tuple[int, ...]
    language: str | None
    no_speech_probability: float
    mean_log_probability: float
    is_complete: bool


def decode_window(stepper: Stepper, tokens: WhisperTokens, options: DecodeOptions) -> WindowResult:
    """Decode the window the stepper holds.

    Raises:
        UsageError: The language or task is not the model's, or `max_tokens` leaves no room.
    """
    head = _previous_tokens(stepper, tokens, options)
    position = 0
    for token_id in head:
        stepper.step(token_id, position)
        position += 1
    first = stepper.step(tokens.start_of_transcript, position)
    no_speech = math.exp(_one(first, tokens.no_speech) - first.log_total)
    language = options.language
    if tokens.is_multilingual and language is None:
        language = detect_language(first, tokens)[0]
    prompt = tokens.prompt(language=language, task=options.task, timestamps=options.timestamps)
    step = first
    for token_id in prompt[1:]:
        position += 1
        step = stepper.step(token_id, position)
    room = stepper.max_context_length - position - 1
    limit = min(room, options.max_tokens if options.max_tokens is not None else stepper.max_context_length // 2)
    if limit < 1:
        raise UsageError("there is no room for an answer", why=f"at most {limit} tokens are left", fix="give max_tokens of 1 or more")
    taken, log_probabilities, is_complete = _answer(stepper, tokens, step, position, limit, timestamps=options.timestamps)
    mean = sum(log_probabilities) / max(1, len(log_probabilities))
    return WindowResult(tuple(taken), language if tokens.is_multilingual else None, no_speech, mean, is_complete)


def detect_language(step: Step, tokens: WhisperTokens) -> tuple[str, float]:
    """The likeliest language after the start of the transcript, and its probability among all languages."""
    logits = {code: _one(step, token_id) for code, token_id in tokens.languages.items()}
    best = max(logits, key=lambda code: logits[code])
    return best, math.exp(logits[best] - _log_sum(logits.values()))


def _previous_tokens(stepper: Stepper, tokens: WhisperTokens, options: DecodeOptions) -> tuple[int, ...]:
    """Earlier text behind its own start token: at most half the context, so that an answer fits."""
    most = stepper.max_context_length // 2 - 1
    kept = [token_id for token_id in options.previous if 0 <= token_id < tokens.end_of_text][-most:]
    return (tokens.start_of_previous, *kept) if kept else ()


def _answer(
    stepper: Stepper, tokens: WhisperTokens, step: Step, position: int, limit: int, *, timestamps: bool
) -> tuple[list[int], list[float], bool]:
    rules = Rules(tokens, timestamps)
    log_probabilities: list[float] = []
    while True:
        token_id, logit = rules.choose(step)
        log_probabilities.append(logit - step.log_total)
        if token_id == tokens.end_of_text:
            return rules.taken, log_probabilities, True
        rules.taken.append(token_id)
        if len(rules.taken) == limit:
            return rules.taken, log_probabilities, False
        position += 1
        step = stepper.step(token_id, position)


@dataclass
class Rules:
    """Which token comes next, given those taken so far."""

    tokens: WhisperTokens
    timestamps: bool
    taken: list[int] = field(default_factory=list)

    def choose(self, step: Step) -> tuple[int, float]:
        """The next token and its logit."""
        begin = self.tokens.timestamp_begin
        if self.timestamps and not self.taken:
            return _best(step, begin, begin + MAX_FIRST_TIMESTAMP + 1)
        words = self._words(step)
        if not self.timestamps or self._is_in_pair():
            return max(words, key=lambda pair: pair[1])
        low = self._first_allowed_timestamp()
        times = step.logits(low, begin + N_TIMESTAMPS)
        if not times:
            return max(words, key=lambda pair: pair[1])
        best = max(range(len(times)), key=times.__getitem__)
        if _log_sum(times) > max(logit for _, logit in words):
            return low + best, times[best]
        return max([*words, (low + best, times[best])], key=lambda pair: pair[1])

    def _words(self, step: Step) -> list[tuple[int, float]]:
        """The end, and the likeliest text where text may come; with their logits."""
        end = (self.tokens.end_of_text, _one(step, self.tokens.end_of_text))
        if not self.taken:
            return self._first_words(step, end)
        if self.timestamps and self._is_time(-1) and not self._is_in_pair():
            return [end]
        return [end, (step.text_token, _one(step, step.text_token))]

    def _first_words(self, step: Step, end: tuple[int, float]) -> list[tuple[int, float]]:
        """As `_words`, without what may not begin an answer."""
        banned = self.tokens.suppressed_at_start
        ends = [] if end[0] in banned else [end]
        if step.text_token not in banned:
            return [*ends, (step.text_token, _one(step, step.text_token))]
        barred = {*banned, *self.tokens.suppressed}
        logits = step.logits(0, self.tokens.end_of_text)
        best = max((token_id for token_id in range(len(logits)) if token_id not in barred), key=logits.__getitem__)
        return [*ends, (best, logits[best])]

    def _is_time(self, index: int) -> bool:
        return self.taken[index] >= self.tokens.timestamp_begin

    def _is_in_pair(self) -> bool:
        """Whether the last two tokens, or the only one, are timestamps: text must follow, or the end."""
        return self._is_time(-1) and (len(self.taken) < 2 or self._is_time(-2))

    def _first_allowed_timestamp(self) -> int:
        """Times never go back; after text the next time must be a later one, but a pair may say the same time twice."""
        times = [token_id for token_id in self.taken if token_id >= self.tokens.timestamp_begin]
        return times[-1] if self._is_time(-1) else times[-1] + 1


def _one(step: Step, token_id: int) -> float:
    return step.logits(token_id, token_id + 1)[0]


def _best(step: Step, start: int, stop: int) -> tuple[int, float]:
    logits = step.logits(start, stop)
    index = max(range(len(logits)), key=logits.__getitem__)
    return start + index, logits[index]


def _log_sum(logits: Iterable[float]) -> float:
    values = list(logits)
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))
