"""The header of a safetensors file, read and proven before a weight is touched.

Source: the safetensors format: 8 bytes of little-endian header length, a JSON object of tensors, then their bytes
without holes. Every number is checked against the file's size before it is used.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.read.json_file import parse_json_object
from toolkit.errors import FormatError

# safetensors itself stops at 100 MB. JSON of that size grows tenfold once parsed; 16 MiB hold 100,000 tensors.
MAX_HEADER_BYTES = 16 * 2**20
MAX_DIMENSIONS = 8
DTYPE_BYTES: dict[str, int] = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "F8_E8M0": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a safetensors file: dtype code, shape, and its bytes as an extent of the file `path`."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


def read_safetensors_header(path: Path) -> dict[str, StoredTensor]:
    """Tensors of `path` by name, in the order of their bytes.

    Raises:
        FormatError: Empty, truncated, or any length, dtype, shape or extent that cannot be true.
    """
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as stream:
            prefix = stream.read(8)
            if len(prefix) < 8:
                raise _damaged(path, f"it has {file_bytes} bytes, the header's length alone takes 8")
            length = struct.unpack("<Q", prefix)[0]
            if length > MAX_HEADER_BYTES or 8 + length > file_bytes:
                raise _damaged(path, f"its header claims {length} bytes; the file has {file_bytes}, {MAX_HEADER_BYTES} are allowed")
            header = parse_json_object(stream.read(length), path)
    except OSError as error:
        raise FormatError(f"{path.name} cannot be read", why=error.strerror or str(error), fix=f"check that {path} exists") from error
    header.pop("__metadata__", None)
    tensors = [_tensor(path, name, entry, 8 + length) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.n_bytes))
    _check_extents(path, tensors, 8 + length, file_bytes)
    return {tensor.name: tensor for tensor in tensors}


def _damaged(path: Path, why: str) -> FormatError:
    return FormatError(
        f"{path.name} is not a sound safetensors file", why=why, fix="download it again and compare its SHA-256 with the publisher's"
    )


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"tensor {name[:80]} is not described by dtype, shape and data_offsets")
    dtype, shape, extent = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise _damaged(path, f"tensor {name[:80]} has the unknown dtype {str(dtype)[:40]!r}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise _damaged(path, f"tensor {name[:80]} has the shape {str(shape)[:80]}")
    if not _are_sizes(extent) or len(extent) != 2 or extent[0] > extent[1]:
        raise _damaged(path, f"tensor {name[:80]} has the extent {str(extent)[:80]}")
    n_bytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if n_bytes != extent[1] - extent[0]:
        raise _damaged(path, f"tensor {name[:80]} of shape {shape} and dtype {dtype} needs {n_bytes} bytes, not {extent[1] - extent[0]}")
    return StoredTensor(name, path, dtype, tuple(shape), data_start + extent[0], n_bytes)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**62 for v in values)


def _check_extents(path: Path, tensors: list[StoredTensor], data_start: int, file_bytes: int) -> None:
    """Tensors must tile the file's data exactly: an overlap, a hole or a missing end is damage."""
    end = data_start
    for tensor in tensors:
        if tensor.offset != end:
            kind = "shares bytes with the one before" if tensor.offset < end else f"leaves {tensor.offset - end} bytes unused before it"
            raise _damaged(path, f"tensor {tensor.name[:80]} {kind}")
        end = tensor.offset + tensor.n_bytes
    if end != file_bytes:
        raise _damaged(path, f"its tensors end at byte {end}, the file at {file_bytes}")
