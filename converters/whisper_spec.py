"""WhisperSpec: everything about a Whisper checkpoint's shape and tokens that a converter needs, in one frozen value.

Apart from `ModelSpec`, which describes one decoder: Whisper is an encoder of sound and a decoder of text that attends to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.speech.whisper_tokens import WhisperTokens

SAMPLE_RATE = 16_000
HOP_LENGTH = 160
FRAME_LENGTH = 400


@dataclass(frozen=True)
class StackSpec:
    """One stack of transformer layers; heads have hidden_size / n_heads dimensions."""

    n_layers: int
    n_heads: int
    intermediate_size: int


@dataclass(frozen=True)
class WhisperSpec:
    """One Whisper model. Layers are pre-norm with LayerNorm (eps 1e-5) and an exact GELU; k projections have no bias.

    Args:
        n_mels: Bands of the log-mel spectrogram, 80 or 128.
        hidden_size: Width of encoder and decoder alike.
        n_audio_positions: Encoder states of one window: half its frames.
        max_context_length: Tokens the decoder holds at most, prompt and answer.
        tokens: Special tokens, languages, timestamps.
        alignment_heads: (layer_index, head_index) of cross-attention heads that follow the sound, if the source says.
    """

    n_mels: int
    hidden_size: int
    encoder: StackSpec
    decoder: StackSpec
    vocab_size: int
    n_audio_positions: int
    max_context_length: int
    tokens: WhisperTokens
    alignment_heads: tuple[tuple[int, int], ...] = ()
    model_type: str = "whisper"
    architecture: str = "WhisperForConditionalGeneration"
    tie_embeddings: bool = True

    @property
    def n_frames(self) -> int:
        """Frames of the log-mel spectrogram of one window."""
        return 2 * self.n_audio_positions

    @property
    def n_samples(self) -> int:
        """Samples of one window at 16 kHz: 480,000, 30 s, in every published model."""
        return self.n_frames * HOP_LENGTH

    @property
    def head_dim(self) -> int:
        """Width of a decoder head."""
        return self.hidden_size // self.decoder.n_heads

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return (self.tokens.end_of_text,)

    @property
    def n_parameters(self) -> int:
        """Weights in the checkpoint, position tables included; the tied table counts once."""
        from converters.architectures.whisper import tensor_shapes

        return sum(math.prod(shape) for shape in tensor_shapes(self).values())

    def kv_bytes_per_token(self, bytes_per_value: float) -> int:
        """Self-attention cache a token adds."""
        return int(2 * self.decoder.n_layers * self.hidden_size * bytes_per_value)

    def cross_kv_bytes(self, bytes_per_value: float) -> int:
        """Keys and values of one window's sound, held while it is decoded."""
        return int(2 * self.decoder.n_layers * self.hidden_size * self.n_audio_positions * bytes_per_value)

    def as_dict(self) -> dict[str, Any]:
        """The spec as JSON data; `from_dict` reads it back."""
        return asdict(self) | {"tokens": self.tokens.as_dict(), "alignment_heads": [list(pair) for pair in self.alignment_heads]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WhisperSpec:
        """The inverse of `as_dict`, also after a trip through JSON.

        Raises:
            TypeError: A field is missing or unknown.
            FormatError: The tokens make no sense.
        """
        values = dict(data)
        for name in ("encoder", "decoder"):
            values[name] = StackSpec(**values[name])
        values["tokens"] = WhisperTokens.from_dict(values["tokens"], vocab_size=values["vocab_size"])
        values["alignment_heads"] = tuple((layer, head) for layer, head in values["alignment_heads"])
        return cls(**values)
