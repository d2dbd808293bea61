"""How the weights of one class of tensor are stored: the vocabulary every recipe and target shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

FLOAT_BITS = (16, 32)
SCALE_BITS = {"tensor": 32, "channel": 32, "blockwise": 16}


class TensorClass(StrEnum):
    """What a weight is for. Vectors (norm scales, biases) have no class: they always stay in float."""

    EMBEDDING = "embedding"
    LINEAR = "linear"
    HEAD = "head"


class Granularity(StrEnum):
    """Which weights share one scale: all of a tensor, one output channel (a row), or `group_size` along the input axis."""

    TENSOR = "tensor"
    CHANNEL = "channel"
    BLOCKWISE = "blockwise"


class Algorithm(StrEnum):
    """How codes are chosen. `cast` is for floats; a range search by mean squared error is left out, it broke models at 4 bits."""

    CAST = "cast"
    ROUND = "round"
    HADAMARD = "hadamard"
    OCTAV = "octav"
    GPTQ = "gptq"


class Activations(StrEnum):
    """What a quantized matmul multiplies its weights with: float32, or int8 codes made on the fly for each token."""

    FLOAT32 = "float32"
    INT8_DYNAMIC = "int8-dynamic"


@dataclass(frozen=True)
class Rule:
    """The storage of one class of tensor.

    Args:
        bits: Bits per weight code: 32 and 16 are floats, 2 to 8 are integers.
        algorithm: `cast` exactly when the weights stay in float.
        granularity: Which weights share a scale; None for floats.
        group_size: Weights per scale along the input axis; only for blockwise.
        is_symmetric: Whether zero is code 0, so no zero points are stored.
        activations: What a matmul multiplies the weights with.
    """

    bits: int
    algorithm: Algorithm
    granularity: Granularity | None = None
    group_size: int | None = None
    is_symmetric: bool = True
    activations: Activations = Activations.FLOAT32

    @property
    def is_float(self) -> bool:
        return self.bits in FLOAT_BITS

    def stored_bits(self, shape: Sequence[int]) -> int:
        """Bits that a tensor of this shape, (out_features, in_features), takes: codes, scales and zero points.

        One float32 scale per tensor or channel, one float16 scale per group (the flatbuffer's blockwise encoding);
        an affine rule stores a zero point of the scale's width beside each scale.

        Raises:
            ValueError: group_size does not divide in_features.
        """
        n_weights = math.prod(shape)
        if self.granularity is None:
            return n_weights * self.bits
        per_scale = SCALE_BITS[self.granularity] * (1 if self.is_symmetric else 2)
        return n_weights * self.bits + self._n_scales(shape) * per_scale

    def _n_scales(self, shape: Sequence[int]) -> int:
        if self.granularity is Granularity.TENSOR:
            return 1
        if self.group_size is None:
            return shape[0]
        if shape[-1] % self.group_size:
            raise ValueError(f"group_size {self.group_size} does not divide in_features {shape[-1]}")
        return math.prod(shape) // self.group_size


def tensor_class(name: str, shape: Sequence[int]) -> TensorClass | None:
    """The class of a tensor by its Hugging Face name; None for vectors, which no recipe quantizes."""
    if len(shape) < 2:
        return None
    if name.endswith("embed_tokens.weight"):
        return TensorClass.EMBEDDING
    return TensorClass.HEAD if name.endswith("lm_head.weight") else TensorClass.LINEAR
