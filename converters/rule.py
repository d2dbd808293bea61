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
    """How codes are chosen.

    `cast` is for floats; `keep` takes the source's own codes and scales. A range search by mean squared error alone is left
    out, it broke models at 4 bits.
    """

    CAST = "cast"
    KEEP = "keep"
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
        bits: Bits per weight code: 32 and 16 are floats, 2 to 8 are integers; None exactly when the source decides (`keep`).
        algorithm: `cast` exactly when the weights stay in float.
        granularity: Which weights share a scale; None for floats.
        group_size: Weights per scale along the input axis; only for blockwise.
        is_symmetric: Whether zero is code 0, so no zero points are stored.
        activations: What a matmul multiplies the weights with.
        int8_rows: Rows of a table, the first ones, that are stored at 8 bits with one scale a row: low token ids are the
            frequent ones, and the head is what few bits hurt. None means none.
    """

    bits: int | None
    algorithm: Algorithm
    granularity: Granularity | None = None
    group_size: int | None = None
    is_symmetric: bool = True
    activations: Activations = Activations.FLOAT32
    int8_rows: int | None = None

    @property
    def is_float(self) -> bool:
        return self.bits in FLOAT_BITS

    @property
    def is_keep(self) -> bool:
        """Whether the source's own codes are kept, so that only the source knows bits and group size."""
        return self.algorithm is Algorithm.KEEP

    def stored_bits(self, shape: Sequence[int]) -> int:
        """Bits that a tensor of this shape, (out_features, in_features), takes: codes, scales and zero points.

        One float32 scale per tensor or channel, one float16 scale per group (the flatbuffer's blockwise encoding);
        an affine rule stores a zero point of the scale's width beside each scale.

        Raises:
            ValueError: group_size does not divide in_features, or the source's codes are kept, whose size a shape cannot tell.
        """
        if self.bits is None:
            raise ValueError("the source's codes are kept, so its file decides their size")
        if self.granularity is None:
            return math.prod(shape) * self.bits
        n_int8 = min(self.int8_rows or 0, shape[0])
        rest = (shape[0] - n_int8, *shape[1:])
        per_scale = SCALE_BITS[self.granularity] * (1 if self.is_symmetric else 2)
        int8_bits = 8 * math.prod((n_int8, *shape[1:])) + n_int8 * SCALE_BITS[Granularity.CHANNEL]
        return int8_bits + math.prod(rest) * self.bits + self._n_scales(rest) * per_scale

    def _n_scales(self, shape: Sequence[int]) -> int:
        if self.granularity is Granularity.TENSOR:
            return 1
        if self.group_size is None:
            return shape[0]
        if shape[-1] % self.group_size:
            raise ValueError(f"group_size {self.group_size} does not divide in_features {shape[-1]}")
        return math.prod(shape) // self.group_size


def tensor_class(name: str, shape: Sequence[int]) -> TensorClass | None:
    """The class of a tensor by its Hugging Face name; None for what no recipe quantizes: vectors, and AltUp's mixing matrices.

    Those have a few rows and columns, one for each residual stream, and everything passes through them.
    """
    if len(shape) < 2 or name.endswith(("altup.prediction_coefs.weight", "altup.correction_coefs.weight")):
        return None
    if name.endswith(("embed_tokens.weight", "embed_tokens_per_layer.weight")):
        return TensorClass.EMBEDDING
    return TensorClass.HEAD if name.endswith("lm_head.weight") else TensorClass.LINEAR
