"""The block formats of GGUF taken apart: codes, scales and offsets instead of float32 values.

Source: ggml's block structures (block_q4_0 ... block_q4_K); a test compares each with gguf-py's dequantization, value by value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from converters.architectures.base import FloatArray
from converters.stored_blocks import GROUP_SIZE

Bytes = npt.NDArray[np.uint8]
_Q8_ZERO = 128


class Blocks(NamedTuple):
    """Consecutive blocks: codes (n_groups, 32) uint8; scales and offsets (n_groups,) float32."""

    codes: Bytes
    scales: FloatArray
    offsets: FloatArray


def unpack_blocks(raw: bytes, kind: str, block_bytes: int) -> Blocks:
    """Take whole blocks apart.

    Args:
        raw: Blocks one after the other, as a file stores them.
        kind: One of `stored_blocks.BLOCK_BITS`.
        block_bytes: Bytes of one block.

    Raises:
        KeyError: A kind that has no codes of this shape.
    """
    return _UNPACK[kind](np.frombuffer(raw, np.uint8).reshape(-1, block_bytes))


def _half(blocks: Bytes, at: int) -> FloatArray:
    """The float16 at a byte of each block, as (n_blocks,) float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")[:, 0].astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """(n, 16) bytes to (n, 32) codes: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """The 32 fifth bits at a byte of each block, each in its place as bit 4: (n_blocks, 32)."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") * np.uint8(16)


def _q4_0(blocks: Bytes) -> Blocks:
    scales = _half(blocks, 0)
    return Blocks(_nibbles(blocks[:, 2:]), scales, -8 * scales)


def _q4_1(blocks: Bytes) -> Blocks:
    return Blocks(_nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Bytes) -> Blocks:
    scales = _half(blocks, 0)
    return Blocks(_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2), scales, -16 * scales)


def _q5_1(blocks: Bytes) -> Blocks:
    return Blocks(_nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Bytes) -> Blocks:
    scales = _half(blocks, 0)
    return Blocks(blocks[:, 2:] ^ np.uint8(_Q8_ZERO), scales, -_Q8_ZERO * scales)  # int8 plus 128, without leaving the byte


def _q4_k(blocks: Bytes) -> Blocks:
    """Eight groups a block: six-bit scales and offsets of each, packed crosswise, times two float16 of the block."""
    n_groups = 8 * len(blocks)
    small = blocks[:, 4:16]
    low, high = small[:, 8:] & 15, small[:, 8:] >> 4
    scales = np.concatenate([small[:, :4] & 63, low | small[:, :4] >> 6 << 4], axis=1)
    offsets = np.concatenate([small[:, 4:8] & 63, high | small[:, 4:8] >> 6 << 4], axis=1)
    codes = _nibbles(blocks[:, 16:].reshape(-1, GROUP_SIZE))  # 32 bytes hold two groups: low nibbles, high nibbles
    return Blocks(
        codes.reshape(n_groups, GROUP_SIZE),
        (_half(blocks, 0)[:, None] * scales).reshape(-1).astype(np.float32),
        (-_half(blocks, 2)[:, None] * offsets).reshape(-1).astype(np.float32),
    )


_UNPACK: dict[str, Callable[[Bytes], Blocks]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
}
