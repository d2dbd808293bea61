"""Weights as onnxruntime's MatMulNBits and GatherBlockQuantized take them: codes of 4 or 8 bits, a scale for each group.

weight = scale * (code - zero point). The zero point is the middle code, 8 or 128, unless stored. A source's own blocks (`keep`)
may have an offset instead, which the operators do not know: it becomes a matmul beside theirs (`onnx_matmul`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.architectures.base import FloatArray
from converters.rule import Algorithm, Granularity, Rule
from converters.stored_blocks import BLOCK_BITS, GROUP_SIZE, StoredBlocks

Bytes = npt.NDArray[np.uint8]
CODE_BITS = (4, 8)
# Scales a row are written as scales a group: the operator's groups are powers of two, and padding a row of 576 to 1024 would
# cost more than the scales do. Smaller groups also cut the activations, which are quantized in the same groups, finer.
ROW_GROUP_SIZE = 32


@dataclass(frozen=True)
class Codes:
    """Rows of one quantized matrix.

    Args:
        bits: 4 or 8: how a code is stored.
        group_size: Weights of a row that share a scale.
        codes: (n_rows, in_features) uint8, each below 2^bits.
        scales: (n_rows, n_groups) float32.
        zero_points: (n_rows, n_groups) uint8, or None for the middle code everywhere.
        offsets: (n_rows, n_groups) float32, or None. With them weight = scale * (code - `base`) + offset.
        base: The code that stands for the offset itself.
    """

    bits: int
    group_size: int
    codes: Bytes
    scales: FloatArray
    zero_points: Bytes | None = None
    offsets: FloatArray | None = None
    base: int = 0

    def dequantized(self) -> FloatArray:
        """(n_rows, in_features) float32."""
        groups = self.codes.reshape(*self.scales.shape, -1).astype(np.float32)
        if self.offsets is not None:
            weights = (groups - self.base) * self.scales[..., None] + self.offsets[..., None]
        else:
            zero = middle(self.bits) if self.zero_points is None else self.zero_points.astype(np.float32)[..., None]
            weights = (groups - zero) * self.scales[..., None]
        return weights.reshape(self.codes.shape)


def middle(bits: int) -> int:
    """The zero point where none is stored."""
    return int(2 ** (bits - 1))


def group_size_of(rule: Rule) -> int:
    """Weights that share a scale in the file, for a rule `refusal` has nothing against."""
    return rule.group_size or ROW_GROUP_SIZE


def refusal(rule: Rule) -> str:
    """Why ONNX cannot be given this rule; empty if it can."""
    if rule.is_float or rule.is_keep:
        return ""
    if rule.algorithm is Algorithm.HADAMARD:
        return "there is no rotation operator; a scale for each 32 weights does what the rotation is for, so int8 is as faithful without"
    if rule.algorithm is not Algorithm.ROUND:
        return f"the algorithm {rule.algorithm} is not there for ONNX"
    if rule.bits not in CODE_BITS:
        return f"{rule.bits}-bit weights: onnxruntime's CPU kernels take 4 and 8"
    if rule.granularity is Granularity.TENSOR:
        return "one scale for a whole tensor: MatMulNBits has one for each group of a row"
    if rule.int8_rows:
        return "int8_rows: a table of two widths is not there for ONNX"
    return ""


def stored_bits(rule: Rule, kind: str | None, shape: tuple[int, ...]) -> int:
    """Bits a matrix of this shape, (out_features, in_features), takes in the file: codes, scales, zero points, offsets.

    Args:
        rule: One `refusal` has nothing against.
        kind: The source's own quantized type, needed for `keep`.
        shape: Of the matrix.

    Raises:
        ValueError: The group size does not divide in_features, or the source has no codes to keep.
    """
    n_weights = shape[0] * shape[1]
    if rule.is_float:
        assert rule.bits is not None
        return n_weights * rule.bits
    if rule.is_keep:
        code_bits, group_bits = _kept_bits(kind)
        return n_weights * code_bits + n_weights // GROUP_SIZE * group_bits
    assert rule.bits is not None
    group_size = group_size_of(rule)
    if shape[1] % group_size:
        raise ValueError(f"groups of {group_size} do not divide in_features {shape[1]}")
    n_groups = shape[1] // group_size
    zero_point_bits = 0 if rule.is_symmetric else 8 * zero_point_bytes(n_groups, rule.bits)
    return n_weights * rule.bits + shape[0] * (16 * n_groups + zero_point_bits)


def _kept_bits(kind: str | None) -> tuple[int, int]:
    """Bits of a code and of what belongs to a group, for one of `BLOCK_BITS`."""
    if kind not in BLOCK_BITS:
        raise ValueError(f"the source stores it as {kind or 'floats'}, which has no codes to keep; {', '.join(BLOCK_BITS)} have")
    if kind == "Q4_K":
        return 4, 64
    return (4 if BLOCK_BITS[kind] == 4 else 8), (32 if kind.endswith("_1") else 16)


def quantize_rows(weight: FloatArray, rule: Rule) -> Codes:
    """Quantize rows of a matrix by rounding to the nearest code.

    Symmetric codes: the weight with the largest magnitude is code 0, so the scale has the opposite sign and all codes are of
    use (KL .44 instead of .56 on SmolLM2 at 4 bits). Affine codes: from the least weight to the most, zero exactly one of them.
    Scales are float16 values, and codes are chosen after that rounding.

    Args:
        weight: (n_rows, in_features) float32, finite.
        rule: One `refusal` has nothing against, neither float nor keep.

    Raises:
        ValueError: The group size does not divide in_features, or a scale is beyond float16.

    Error bound:
        |weight - dequantized| <= |scale| for each element: half a step of rounding, and half a step more at the far end of a
        range that is as wide on both sides. Groups whose scale float16 calls zero become zero.

    Source:
        Q4_0 in ggml, and onnxruntime's own quantizer, put the largest magnitude on the lowest code.
    """
    assert rule.bits is not None
    group_size = group_size_of(rule)
    if weight.shape[1] % group_size:
        raise ValueError(f"groups of {group_size} do not divide in_features {weight.shape[1]}")
    groups = np.ascontiguousarray(weight, np.float32).reshape(-1, group_size)
    least, most = groups.min(axis=1), groups.max(axis=1)
    highest = 2**rule.bits - 1
    if rule.is_symmetric:
        edge = np.where(-least > most, least, most)
        scales, zero_points = _as_float16(edge / np.float32(-middle(rule.bits))), None
        shift: npt.NDArray[Any] = np.full(len(groups), middle(rule.bits), np.float32)
    else:
        least, most = np.minimum(least, 0), np.maximum(most, 0)
        scales = _as_float16((most - least) / np.float32(highest))
        shift = np.clip(np.rint(-least / _divisor(scales)), 0, highest)
        zero_points = shift.astype(np.uint8).reshape(len(weight), -1)
    codes = groups / _divisor(scales)[:, None]
    np.rint(codes, out=codes)
    codes += shift[:, None]
    np.clip(codes, 0, highest, out=codes)
    return Codes(rule.bits, group_size, codes.astype(np.uint8).reshape(weight.shape), scales.reshape(len(weight), -1), zero_points)


def kept(blocks: StoredBlocks) -> Codes:
    """A source's own blocks, value for value.

    Five-bit codes are stored in eight bits, around the middle code like the others. Where the source means symmetric codes, its
    offsets are the middle code times its scales, and none are stored.
    """
    bits = 4 if blocks.bits == 4 else 8
    base = middle(bits) - middle(blocks.bits)
    codes = Codes(bits, blocks.group_size, blocks.codes + np.uint8(base), blocks.scales)
    is_symmetric = np.array_equal(blocks.offsets, np.float32(-middle(blocks.bits)) * blocks.scales)
    return codes if is_symmetric else replace(codes, offsets=blocks.offsets, base=base)


def pack_codes(codes: Codes) -> Bytes:
    """(n_rows, n_groups, bytes of a group) uint8; of two 4-bit codes the first is the low half of a byte."""
    n_rows, n_groups = codes.scales.shape
    groups = codes.codes.reshape(n_rows, n_groups, -1)
    return groups if codes.bits == 8 else _nibbles(groups)


def pack_zero_points(codes: Codes) -> Bytes | None:
    """(n_rows, `zero_point_bytes`) uint8, packed like codes, or None."""
    if codes.zero_points is None or codes.bits == 8:
        return codes.zero_points
    is_odd = codes.zero_points.shape[1] % 2
    return _nibbles(np.pad(codes.zero_points, ((0, 0), (0, is_odd))))


def zero_point_bytes(n_groups: int, bits: int) -> int:
    """Bytes of one row's zero points."""
    return n_groups if bits == 8 else (n_groups + 1) // 2


def _nibbles(codes: Bytes) -> Bytes:
    return codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)


def _as_float16(scales: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        rounded = scales.astype(np.float16).astype(np.float32)
    if not np.isfinite(rounded).all():
        raise ValueError(f"a scale of {float(np.abs(scales).max()):.3g} is beyond float16")
    return rounded


def _divisor(scales: FloatArray) -> FloatArray:
    """Scales to divide by; where float16 calls one zero, all codes of its group become the zero point."""
    return np.where(scales != 0, scales, np.float32(np.inf))
