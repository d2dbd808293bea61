"""What the Whisper targets share: which tensors a rule is for, and their models as a `SpeechScorer`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from converters.rule import Rule, TensorClass, tensor_class

if TYPE_CHECKING:
    from converters.divergence import Logits

# Tables that are added, not multiplied: rounding them gains nothing and costs accuracy.
FLOAT_TABLES = ("embed_positions.weight",)


def rule_for(name: str, shape: Sequence[int], rules: Mapping[TensorClass, Rule]) -> Rule | None:
    """The rule of one tensor; None for what stays in float: vectors, convolutions, position tables."""
    kind = tensor_class(name, shape)
    if kind is None or len(shape) != 2 or name.endswith(FLOAT_TABLES):
        return None
    return rules[kind]


class WhisperScorer:
    """A Whisper of ours as a `SpeechScorer`: any model that takes windows and steps."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def hear(self, samples: Sequence[float]) -> None:
        """Take one window of sound."""
        self.model.encode(samples)

    def logits(self, token_ids: Sequence[int], n_prompt: int) -> Iterator[Logits]:
        """One row a step, as a transcript is decoded."""
        import numpy as np

        vocab_size = self.model.dims.vocab_size
        for position, token_id in enumerate(token_ids):
            step = self.model.step(token_id, position)
            if position >= n_prompt:
                yield np.array(step.logits(0, vocab_size), np.float32)[None]

    def greedy(self, language: str | None, max_tokens: int) -> tuple[int, ...]:
        """Tokens of the runtime's own decoding loop, without timestamps."""
        from toolkit.speech.whisper_decoding import DecodeOptions, decode_window

        options = DecodeOptions(language=language, timestamps=False, max_tokens=max_tokens)
        return decode_window(self.model, self.model.tokens, options).token_ids
