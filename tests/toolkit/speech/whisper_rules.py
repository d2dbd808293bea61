"""A small Whisper vocabulary and a model whose answers are random numbers: the rules alone decide what follows."""

from __future__ import annotations

import array
from dataclasses import dataclass

import numpy as np

from toolkit.speech.whisper_tokens import N_TIMESTAMPS, WhisperTokens

END = 40
TOKENS = WhisperTokens(
    end_of_text=END,
    start_of_transcript=41,
    transcribe=45,
    translate=44,
    start_of_previous=46,
    no_speech=47,
    no_timestamps=48,
    timestamp_begin=49,
    is_multilingual=True,
    languages={"en": 42, "ja": 43},
    suppressed=(1, 2, 41, 44, 45, 46, 47),
    suppressed_at_start=(3, END),
)
VOCAB_SIZE = 49 + N_TIMESTAMPS


@dataclass(frozen=True)
class ArrayStep:
    """A step whose logits are given."""

    values: np.ndarray

    @property
    def text_token(self) -> int:
        allowed = self.values[:END].copy()
        allowed[[token_id for token_id in TOKENS.suppressed if token_id < END]] = -np.inf
        return int(allowed.argmax())

    @property
    def log_total(self) -> float:
        top = float(self.values.max())
        return top + float(np.log(np.exp(self.values - top).sum()))

    def logits(self, start: int, stop: int) -> array.array[float]:
        return array.array("d", self.values[start:stop])


class RandomModel:
    """Logits that depend on the tokens so far and on a seed."""

    max_context_length = 60

    def __init__(self, seed: int, *, time_bias: float = 0.0, end_bias: float = 0.0) -> None:
        self.seed, self.time_bias, self.end_bias = seed, time_bias, end_bias
        self.fed: list[int] = []

    def step(self, token_id: int, position: int) -> ArrayStep:
        assert position <= len(self.fed), "a position was skipped"
        self.fed = [*self.fed[:position], token_id]
        return ArrayStep(self.at(self.fed))

    def at(self, fed: list[int]) -> np.ndarray:
        values = np.random.default_rng([self.seed, *fed]).standard_normal(VOCAB_SIZE) * 3
        values[TOKENS.timestamp_begin :] += self.time_bias
        values[END] += self.end_bias
        values[[42, 43, TOKENS.no_timestamps]] -= 40.0  # no real model says these in the middle of a text
        return values
