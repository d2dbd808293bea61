"""The header of a GGUF file, read and proven before a tensor is touched.

Every count and length is checked against the bytes that are left before anything is allocated, so a lying header costs
its own size and no more. The tensors' extents must lie in the file, aligned, and share no byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.read.byte_cursor import ByteCursor, mapped
from converters.read.gguf_types import ARRAY, BOOL, NUMPY_DTYPES, SCALAR_FORMATS, STRING, TENSOR_TYPES, TensorType
from toolkit.errors import UnsupportedModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 256 * 2**20
MAX_KEYS = 100_000
MAX_TENSORS = 100_000
MAX_NAME_BYTES = 1024
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 2**20
_KIND = "GGUF file"
_MIN_FILE_BYTES = 24
# A tensor's record is at least: name length, one name byte, dimension count, one dimension, type, offset.
_MIN_TENSOR_RECORD = 8 + 1 + 4 + 8 + 4 + 8
_MIN_KEY_RECORD = 8 + 1 + 4 + 1


@dataclass(frozen=True)
class GgufTensor:
    """One tensor: shape in numpy order (outermost first), storage type, and its bytes as an extent of the file."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    n_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """Metadata by key (numbers, text, lists of text, numpy arrays of numbers) and tensors by name, in file order."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    file_bytes: int


def read_gguf_header(path: Path) -> GgufHeader:
    """Read and check the header of `path`; weights are not touched.

    Raises:
        FormatError: Empty, truncated, or any count, length, type, name or extent that cannot be true.
        UnsupportedModelError: A big-endian file or a version other than 2 and 3.
    """
    with mapped(path, _KIND, least_bytes=_MIN_FILE_BYTES) as data:
        return _Cursor(path, _KIND, data, most_bytes=MAX_HEADER_BYTES).header()


class _Cursor(ByteCursor):
    """A position in the header."""

    def header(self) -> GgufHeader:
        if self.take(4) != MAGIC:
            raise self.fail("it does not begin with GGUF")
        version = self.number("I", 4)
        if version not in VERSIONS:
            kind = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
            raise UnsupportedModelError(
                f"{self.path.name} is a {kind} GGUF file",
                why="little-endian versions 2 and 3 are read",
                fix="write it again with a current llama.cpp (convert_hf_to_gguf.py)",
            )
        n_tensors, n_keys = self.number("Q", 8), self.number("Q", 8)
        self.check_count("tensors", n_tensors, _MIN_TENSOR_RECORD, MAX_TENSORS)
        self.check_count("keys", n_keys, _MIN_KEY_RECORD, MAX_KEYS)
        metadata = self.metadata(n_keys)
        records = [self.tensor_record() for _ in range(n_tensors)]
        return GgufHeader(version, metadata, self.placed(records, self.alignment(metadata)), self.file_bytes)

    def text(self, maximum: int | None = None) -> str:
        length = self.number("Q", 8)
        if maximum is not None and not 1 <= length <= maximum:
            raise self.fail(f"a name of {length} bytes; 1 to {maximum} are allowed")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail("text that is not UTF-8") from error

    def check_count(self, what: str, count: int, record_bytes: int, maximum: int) -> None:
        if count > maximum or count * record_bytes > self.limit - self.position:
            raise self.fail(f"it claims {count} {what}, {self.limit - self.position} header bytes are left")

    def metadata(self, n_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self.text(MAX_NAME_BYTES)
            if key in metadata:
                raise self.fail(f"key {key} appears twice")
            metadata[key] = self.value(self.number("I", 4), key)
        return metadata

    def value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array(key)
        if kind not in SCALAR_FORMATS:
            raise self.fail(f"key {key} has the unknown type {kind}")
        if kind == BOOL:
            return self.take(1) != b"\0"
        return self.number(*SCALAR_FORMATS[kind])

    def array(self, key: str) -> Any:
        kind, count = self.number("I", 4), self.number("Q", 8)
        if kind == ARRAY:
            raise self.fail(f"key {key} nests arrays, which no model does")
        if kind != STRING and kind not in SCALAR_FORMATS:
            raise self.fail(f"key {key} holds the unknown type {kind}")
        item_bytes = 8 if kind == STRING else SCALAR_FORMATS[kind][1]
        self.check_count(f"values in {key}", count, item_bytes, MAX_HEADER_BYTES)
        if kind == STRING:
            return [self.text() for _ in range(count)]
        return np.frombuffer(self.take(count * item_bytes), dtype="|u1" if kind == BOOL else NUMPY_DTYPES[kind]).copy()

    def tensor_record(self) -> tuple[str, tuple[int, ...], TensorType, int]:
        name, n_dimensions = self.text(MAX_NAME_BYTES), self.number("I", 4)
        if not 1 <= n_dimensions <= MAX_DIMENSIONS:
            raise self.fail(f"tensor {name} has {n_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed")
        dimensions = [self.number("Q", 8) for _ in range(n_dimensions)]
        kind, offset = self.number("I", 4), self.number("Q", 8)
        if kind not in TENSOR_TYPES:
            raise self.fail(f"tensor {name} has the unknown type {kind}")
        tensor_type = TENSOR_TYPES[kind]
        if min(dimensions) < 1 or dimensions[0] % tensor_type.block_size:
            raise self.fail(f"tensor {name} of shape {dimensions} cannot be stored as {tensor_type.name}")
        return name, tuple(reversed(dimensions)), tensor_type, offset

    def alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self.fail(f"general.alignment {alignment!r} is no power of two up to {MAX_ALIGNMENT}")
        return alignment

    def placed(self, records: list[tuple[str, tuple[int, ...], TensorType, int]], alignment: int) -> dict[str, GgufTensor]:
        data_start = -(-self.position // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, tensor_type, offset in records:
            n_values = 1
            for size in shape:
                n_values *= size
            n_bytes = n_values // tensor_type.block_size * tensor_type.block_bytes
            if name in tensors:
                raise self.fail(f"tensor {name} appears twice")
            if offset % alignment:
                raise self.fail(f"tensor {name} begins at {offset}, which is not aligned to {alignment}")
            if data_start + offset + n_bytes > self.file_bytes:
                raise self.fail(f"tensor {name} ends at byte {data_start + offset + n_bytes}, the file at {self.file_bytes}")
            tensors[name] = GgufTensor(name, shape, tensor_type, data_start + offset, n_bytes)
        by_offset = sorted(tensors.values(), key=lambda tensor: tensor.offset)
        for before, after in zip(by_offset, by_offset[1:], strict=False):
            if before.offset + before.n_bytes > after.offset:
                raise self.fail(f"tensors {before.name} and {after.name} share bytes")
        return tensors
