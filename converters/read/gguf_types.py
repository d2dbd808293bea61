"""GGUF's value types and tensor types: sizes of the wire format, needed before any library may touch a file.

Source: the GGUF specification and ggml's block structures; a test compares this table with gguf-py's.
"""

from __future__ import annotations

from typing import NamedTuple


class TensorType(NamedTuple):
    """How a tensor is stored: `block_size` values take `block_bytes` bytes, `bits` per weight on disk."""

    name: str
    block_size: int
    block_bytes: int

    @property
    def bits(self) -> float:
        return 8 * self.block_bytes / self.block_size


TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 40),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
}

# Types gguf-py 0.19 can turn into float32. The rest are integers, or types no weight is stored in.
READABLE = frozenset(t.name for t in TENSOR_TYPES.values()) - {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64", "Q1_0"}

# Metadata value types: id to (struct format, size in bytes). Strings and arrays are handled apart.
SCALAR_FORMATS: dict[int, tuple[str, int]] = {
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    7: ("?", 1),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}
BOOL, STRING, ARRAY = 7, 8, 9
NUMPY_DTYPES = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1", 10: "<u8", 11: "<i8", 12: "<f8"}
