"""A safetensors file written in one pass, block by block, so that its size never has to fit in memory."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from converters.architectures.base import FloatArray
from toolkit.errors import ToolkitError

WeightDtype = Literal["float32", "float16", "bfloat16"]
DTYPE_CODES: dict[WeightDtype, tuple[str, int]] = {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2)}
_FLOAT16_MAX = 65504.0


class BlockSource(Protocol):
    """What the writer needs of a checkpoint's tensors."""

    def names(self) -> tuple[str, ...]:
        """Every tensor, in writing order."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape, outermost dimension first."""

    def blocks(self, name: str) -> Iterator[FloatArray]:
        """Consecutive blocks of rows."""


def write_safetensors(path: Path, tensors: BlockSource, dtype: WeightDtype, on_tensor: Callable[[str], None] | None = None) -> None:
    """Write every tensor of `tensors` to `path`, which appears only when it is whole.

    Raises:
        ToolkitError: A value is too large for float16.
        OSError: The file cannot be written; the part that was is removed.
    """
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as stream:
            stream.write(_header(tensors, dtype))
            for name in tensors.names():
                for block in tensors.blocks(name):
                    stream.write(encode_floats(block, dtype, name).data)
                if on_tensor is not None:
                    on_tensor(name)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _header(tensors: BlockSource, dtype: WeightDtype) -> bytes:
    code, size = DTYPE_CODES[dtype]
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in tensors.names():
        shape = tensors.shape(name)
        start, end = end, end + math.prod(shape) * size
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [start, end]}
    return header_bytes(header)


def header_bytes(header: dict[str, object]) -> bytes:
    """The start of a safetensors file: the header's length, its JSON, spaces up to a multiple of 8."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def encode_floats(block: FloatArray, dtype: WeightDtype, name: str) -> np.ndarray:
    """Values as a file stores them: float32, float16, or the 16 bits of bfloat16 as uint16; same shape, contiguous.

    Raises:
        ToolkitError: A value is too large for float16; `name` says whose.
    """
    block = np.ascontiguousarray(block, np.float32)
    if dtype == "float32":
        return block
    if dtype == "bfloat16":
        return to_bfloat16(block)
    if np.abs(block).max(initial=0.0) > _FLOAT16_MAX:
        raise ToolkitError(
            f"{name} does not fit in float16",
            why=f"it holds {float(np.abs(block).max()):.6g}, float16 ends at {_FLOAT16_MAX:.0f}",
            fix="write float32 or bfloat16 instead",
        )
    return block.astype(np.float16)


def to_bfloat16(values: FloatArray) -> np.ndarray:
    """The upper 16 bits of each finite float32, rounded to nearest, ties to even; uint16, same shape."""
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16).astype(np.uint16)
