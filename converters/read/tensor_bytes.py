"""Bytes of stored tensors, and the float types they spell: one place that says when a file ended early."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from converters.architectures.base import FloatArray
from toolkit.errors import FormatError


def read_extent(path: Path, offset: int, n_bytes: int, tensor_name: str, *, fix: str = "download it again") -> bytes:
    """`n_bytes` of a file from byte `offset` on.

    Raises:
        FormatError: The file shrank since its header was read; names the tensor.
    """
    with path.open("rb", buffering=0) as stream:
        stream.seek(offset)
        raw = stream.read(n_bytes)
    if len(raw) != n_bytes:
        raise FormatError(f"{path.name} ended while it was read", why=f"{tensor_name} is cut", fix=fix)
    return raw


def as_float32(raw: bytes, dtype: str) -> FloatArray:
    """Flat float32 values of stored F32, F16 or BF16 bytes; exact."""
    if dtype == "F32":
        return np.frombuffer(raw, "<f4")
    if dtype == "F16":
        return np.frombuffer(raw, "<f2").astype(np.float32)
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
