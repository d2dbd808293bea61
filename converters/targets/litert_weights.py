"""Weights in the two integer forms LiteRT's fast kernels take, and how other forms come to them.

int8 with one float32 scale a row, and int4 with one scale for 32 weights (symmetric, codes -8 to 7). What has offsets
(weight = scale * code + offset) becomes the int4 form and an int8 matrix of what the offsets add to each group's sum:

    sum_j w_j x_j = sum_groups d * sum (q - 8) x  +  sum_groups c * (sum of the group's x),    c = offset + 8 d
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from converters.architectures.base import FloatArray
from converters.stored_blocks import StoredBlocks

Int8Array = npt.NDArray[np.int8]
INT4_BITS = 4
CODE_OF_ZERO = 8
SMALLEST_SCALE = 2.0**-16  # a bfloat16 below this is no float16 any more; weights this small do not matter


@dataclass(frozen=True)
class Int8Rows:
    """codes (rows, columns) int8 in -127..127, scales (rows,) float32; weight = scale * code."""

    codes: Int8Array
    scales: FloatArray

    def dequantized(self) -> FloatArray:
        return self.codes.astype(np.float32) * self.scales[:, None]


@dataclass(frozen=True)
class Int4Groups:
    """codes (rows, columns) int8 in -8..7, scales (rows, columns // group_size) float32; weight = scale * code.

    Scales are positive, and numbers that float16 (what the file stores) and bfloat16 (what the kernel uses) both hold.
    """

    codes: Int8Array
    scales: FloatArray
    group_size: int

    def dequantized(self) -> FloatArray:
        return self.codes.astype(np.float32) * np.repeat(self.scales, self.group_size, axis=1)


@dataclass(frozen=True)
class GroupedLinear:
    """A matrix as LiteRT multiplies it: groups and, where the weights have offsets, what to add for each group's sum of x.

    `sums` has one column a group; None for symmetric weights.
    """

    groups: Int4Groups
    sums: Int8Rows | None

    def dequantized(self) -> FloatArray:
        weight = self.groups.dequantized()
        if self.sums is not None:
            weight += np.repeat(self.sums.dequantized(), self.groups.group_size, axis=1)
        return weight


def round_to_int8(weight: FloatArray) -> Int8Rows:
    """Round to nearest, one scale a row: largest magnitude / 127. A row of zeros has scale 1."""
    largest = np.abs(weight).max(axis=1)
    scales = np.where(largest > 0, largest / 127, 1.0).astype(np.float32)
    codes = np.clip(np.rint(weight / scales[:, None]), -127, 127).astype(np.int8)
    return Int8Rows(codes, scales)


def kernel_scale(scales: FloatArray) -> FloatArray:
    """The nearest scale that a bfloat16 holds, and at least `SMALLEST_SCALE`: it is then exact in float16 too."""
    bits = np.maximum(scales, SMALLEST_SCALE).astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000  # ties to even, as float32 to bfloat16 conversions do
    nearest: FloatArray = rounded.astype(np.uint32).view(np.float32)
    return nearest


def from_blocks(blocks: StoredBlocks) -> GroupedLinear:
    """4-bit codes with scales and offsets, as LiteRT multiplies them.

    Codes are kept. A scale rounded to bfloat16 moves every weight of its group in proportion to its code: the offset takes
    the mean of that, so what is left is at most 2^-9 of the scale for each step from the mean code.

    Args:
        blocks: 4 bits. A negative scale is turned round: d q + m = -d (15 - q) + (m + 15 d).

    Returns:
        Without `sums` when every group's offset is -8 times its scale, as symmetric weights have it.
    """
    if blocks.bits != INT4_BITS:
        raise ValueError(f"{blocks.bits}-bit codes; LiteRT multiplies groups of 4 bits only")
    turned = blocks.scales < 0
    scales, offsets = np.abs(blocks.scales), blocks.offsets + np.where(turned, 15 * blocks.scales, 0)
    grouped = blocks.codes.reshape(*scales.shape, blocks.group_size)
    codes = np.where(turned[..., None], 15 - grouped, grouped).astype(np.int8)
    stored = kernel_scale(scales)
    groups = Int4Groups((codes - CODE_OF_ZERO).reshape(blocks.codes.shape), stored, blocks.group_size)
    if np.array_equal(offsets, -CODE_OF_ZERO * scales):
        return GroupedLinear(groups, None)
    moved = (scales - stored) * codes.mean(axis=-1, dtype=np.float32)
    return GroupedLinear(groups, round_to_int8((offsets + CODE_OF_ZERO * stored + moved).astype(np.float32)))


def pack_int4(codes: Int8Array) -> npt.NDArray[np.uint8]:
    """Two codes a byte, the first in the low half, as TFLite stores INT4 tensors; (rows * columns / 2,) uint8."""
    nibbles = codes.reshape(-1, 2).view(np.uint8) & 0x0F
    return (nibbles[:, 0] | (nibbles[:, 1] << 4)).astype(np.uint8)


def unpack_int4(packed: npt.NDArray[np.uint8], shape: tuple[int, int]) -> Int8Array:
    """The inverse of `pack_int4`, by arithmetic shifts of signed bytes."""
    signed = packed.view(np.int8)
    codes = np.empty((signed.size, 2), np.int8)
    codes[:, 0] = np.left_shift(signed, 4) >> 4
    codes[:, 1] = signed >> 4
    return codes.reshape(shape)
