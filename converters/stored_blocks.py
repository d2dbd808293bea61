"""A source's own quantization: its codes, scales and offsets as the file holds them, for targets that keep them.

Every kind here has groups of 32 weights along the input axis, so a block of the file is a group of the matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from converters.architectures.base import FloatArray

GROUP_SIZE = 32
# Kinds that have codes, by GGUF's name for them: bits per code.
BLOCK_BITS = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "Q4_K": 4}


class FloatStored:
    """What a source whose tensors are stored as floats, or in a layout that no target keeps, says of its own codes."""

    def stored_kind(self, name: str) -> str | None:
        """None."""
        return None

    def stored(self, name: str) -> StoredBlocks | None:
        """None."""
        return None


@dataclass(frozen=True)
class StoredBlocks:
    """One quantized matrix: weight = scale * code + offset, each step rounded to float32, exactly as the source means it.

    Rows are in Hugging Face order, whatever the file's was.

    Args:
        kind: One of `BLOCK_BITS`.
        bits: Bits per code.
        group_size: Weights that share a scale and an offset.
        codes: (out_features, in_features) uint8, each 0 .. 2^bits - 1.
        scales: (out_features, in_features // group_size) float32. Q4_K's are products of two of the file's numbers, all
            others are float16 values.
        offsets: As scales.
    """

    kind: str
    bits: int
    group_size: int
    codes: npt.NDArray[np.uint8]
    scales: FloatArray
    offsets: FloatArray

    def dequantized(self) -> FloatArray:
        """The weights in float32, (out_features, in_features)."""
        groups = self.codes.astype(np.float32).reshape(*self.scales.shape, self.group_size)
        groups *= self.scales[..., None]
        groups += self.offsets[..., None]
        return groups.reshape(self.codes.shape)
