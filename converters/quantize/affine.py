"""Affine quantization: codes 0 .. 2^bits - 1, a scale and a bias for each group of weights, as MLX defines it.

weight = scale * code + bias. A group is `group_size` consecutive weights along the input axis, the one a matmul sums over.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from converters.architectures.base import FloatArray

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
WORD_BITS = 32
# Groups worked on at once hold about this many weights: their float32 and codes stay in a core's cache.
CHUNK_WEIGHTS = 2**18
_LEAST_SCALE = np.float32(1e-7)


class Affine(NamedTuple):
    """A quantized matrix.

    Args:
        packed: (out_features, in_features * bits / 32) uint32: each row's codes as one little-endian stream of bits.
        scales: (out_features, in_features / group_size) float32, not yet rounded to the type they are stored in.
        biases: As scales.
    """

    packed: npt.NDArray[np.uint32]
    scales: FloatArray
    biases: FloatArray


def quantize_affine(weight: FloatArray, *, bits: int, group_size: int) -> Affine:
    """Quantize a matrix, or a block of its rows, by rounding to the nearest code.

    Args:
        weight: (out_features, in_features) float32, finite. For weights of another type pass their float32 values.
        bits: Bits per code, one of `BITS`.
        group_size: Weights that share a scale, one of `GROUP_SIZES`; must divide in_features.

    Returns:
        Codes chosen with float32 scales and biases; round those to the stored type afterwards, as MLX does.

    Raises:
        ValueError: bits or group_size is not one MLX knows, or group_size does not divide in_features.

    Error bound:
        |weight - (scale * code + bias)| <= |scale| for each element: half a step of rounding, and as much again where the
        far end of the range moved when the near end (or zero) was put on a code.

    Source:
        `mx.quantize` of MLX 0.32, mode affine: the end of the range with the larger magnitude is kept exactly, and zero is made
        a code where the range holds it. Bit for bit equal to it (tests/converters/quantize/test_affine.py).
    """
    require_affine(bits, group_size, weight.shape[-1])
    groups = np.ascontiguousarray(weight, np.float32).reshape(-1, group_size)
    packed = np.empty((len(groups), group_size * bits // WORD_BITS), np.uint32)
    scales, biases = np.empty(len(groups), np.float32), np.empty(len(groups), np.float32)
    step = CHUNK_WEIGHTS // group_size
    for start in range(0, len(groups), step):
        # One group a column: every operation below then runs along memory, several times faster than along groups.
        columns = np.ascontiguousarray(groups[start : start + step].T)
        part = slice(start, start + step)
        scales[part], biases[part] = scale, bias = _scale_and_bias(columns, bits)
        columns -= bias
        columns /= scale
        np.rint(columns, out=columns)
        np.clip(columns, 0, 2**bits - 1, out=columns)
        packed[part] = _packed_columns(columns.astype(np.uint8), bits).T
    n_rows = weight.shape[0]
    return Affine(packed.reshape(n_rows, -1), scales.reshape(n_rows, -1), biases.reshape(n_rows, -1))


def require_affine(bits: int, group_size: int, in_features: int) -> None:
    """Refuse what MLX has no kernel for.

    Raises:
        ValueError: With the numbers, and what would do.
    """
    if bits not in BITS:
        raise ValueError(f"{bits} bits: affine codes have {', '.join(map(str, BITS))}")
    if group_size not in GROUP_SIZES:
        raise ValueError(f"group_size {group_size}: affine groups have {', '.join(map(str, GROUP_SIZES))} weights")
    if in_features % group_size:
        raise ValueError(f"group_size {group_size} does not divide in_features {in_features}")


def pack_codes(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint32]:
    """Pack codes as `Affine.packed` holds them.

    Args:
        codes: (out_features, in_features), each below 2^bits; in_features a multiple of 32.
        bits: One of `BITS`.

    Raises:
        ValueError: bits is none of them, a row is no multiple of 32 long, or a code does not fit.
    """
    require_affine(bits, WORD_BITS, codes.shape[-1])
    if codes.size and int(codes.max()) >> bits:
        raise ValueError(f"code {int(codes.max())} does not fit in {bits} bits")
    runs = codes.reshape(-1, WORD_BITS)
    packed = np.empty((len(runs), bits), np.uint32)
    step = CHUNK_WEIGHTS // WORD_BITS
    for start in range(0, len(runs), step):
        packed[start : start + step] = _packed_columns(np.ascontiguousarray(runs[start : start + step].T), bits).T
    return packed.reshape(codes.shape[0], -1)


def unpack_codes(packed: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint8]:
    """The inverse of `pack_codes`: (out_features, in_features) uint8."""
    words = packed.reshape(-1, bits)
    codes = np.empty((len(words), WORD_BITS), np.uint8)
    mask = np.uint32(2**bits - 1)
    for index in range(WORD_BITS):
        word, shift = divmod(index * bits, WORD_BITS)
        value = words[:, word] >> np.uint32(shift)
        if shift + bits > WORD_BITS:
            value = value | words[:, word + 1] << np.uint32(WORD_BITS - shift)
        codes[:, index] = value & mask
    return codes.reshape(packed.shape[0], -1)


def dequantize_affine(affine: Affine, *, bits: int) -> FloatArray:
    """The weights in float32: (out_features, in_features)."""
    codes = unpack_codes(affine.packed, bits).astype(np.float32)
    groups = codes.reshape(*affine.scales.shape, -1)
    return (groups * affine.scales[..., None] + affine.biases[..., None]).reshape(codes.shape)


def _scale_and_bias(columns: FloatArray, bits: int) -> tuple[FloatArray, FloatArray]:
    """Scale and bias of each column, (n_groups,) float32 each."""
    least, most = columns.min(axis=0), columns.max(axis=0)
    keeps_least = np.abs(least) > np.abs(most)
    edge = np.where(keeps_least, least, most)
    scale = np.maximum((most - least) / np.float32(2**bits - 1), _LEAST_SCALE)
    scale = np.where(keeps_least, scale, -scale)
    zero_code = np.rint(edge / scale)  # codes from the edge to zero; none where all weights are (nearly) zero
    has_zero = zero_code != 0
    scale = np.divide(edge, zero_code, out=scale, where=has_zero)
    return scale, np.where(has_zero, edge, np.float32(0))


def _packed_columns(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint32]:
    """Pack downwards: (n, n_groups) codes, n a multiple of 32, become (n * bits / 32, n_groups) words."""
    words = np.zeros((codes.shape[0] * bits // WORD_BITS, codes.shape[1]), np.uint32)
    for index, row in enumerate(codes):
        word, shift = divmod(index * bits, WORD_BITS)
        wide = row.astype(np.uint32)
        words[word] |= wide << np.uint32(shift)
        if shift + bits > WORD_BITS:
            words[word + 1] |= wide >> np.uint32(WORD_BITS - shift)
    return words
