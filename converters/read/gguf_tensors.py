"""Weights of a GGUF file as float32, one tensor or one block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.architectures.base import Family, FloatArray
from converters.architectures.decoder import GGUF_TABLES
from converters.read.gguf_blocks import Blocks, unpack_blocks
from converters.read.gguf_header import GgufHeader, GgufTensor, read_gguf_header
from converters.read.gguf_types import READABLE
from converters.read.tensor_bytes import as_float32, read_extent
from converters.spec import ModelSpec
from converters.stored_blocks import BLOCK_BITS, GROUP_SIZE, StoredBlocks
from toolkit.errors import BackendUnavailableError, FormatError, UnsupportedModelError

# Rows are dequantized in blocks of about this many float32 bytes: large enough for numpy, small beside any model.
BLOCK_BYTES = 16 * 2**20


class GgufFile:
    """A GGUF file with a proven header. Reads bytes by offset, so nothing of the file stays mapped or resident."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: GgufHeader = read_gguf_header(path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.header.metadata

    def shape(self, tensor_name: str) -> tuple[int, ...] | None:
        """Shape in numpy order, None if the file does not hold the tensor."""
        tensor = self.header.tensors.get(tensor_name)
        return tensor.shape if tensor else None

    def load(self, tensor_name: str) -> FloatArray:
        """One whole tensor as float32, as the file lays it out."""
        tensor = self.header.tensors[tensor_name]
        out = np.empty(tensor.shape, np.float32)
        rows, start = out.reshape(-1, tensor.shape[-1]), 0
        for block in self.blocks(tensor_name):
            rows[start : start + len(block)] = block
            start += len(block)
        return out

    def blocks(self, tensor_name: str) -> Iterator[FloatArray]:
        """Consecutive rows as (n_rows, row_length) float32 blocks of at most `BLOCK_BYTES` (or one row).

        Raises:
            FormatError: The file shrank since its header was read, or a value is NaN or infinite.
        """
        tensor = self.header.tensors[tensor_name]
        for raw in self._raw_rows(tensor):
            yield _finite(_dequantized(raw, tensor).reshape(-1, tensor.shape[-1]), self.name, tensor_name)

    def load_blocks(self, tensor_name: str) -> Blocks:
        """Codes, scales and offsets of one whole tensor, as the file lays it out; its type must be one of `BLOCK_BITS`.

        Raises:
            FormatError: The file shrank since its header was read, or a scale or offset is NaN or infinite.
        """
        tensor = self.header.tensors[tensor_name]
        n_groups = int(np.prod(tensor.shape, dtype=np.int64)) // GROUP_SIZE
        whole = Blocks(np.empty((n_groups, GROUP_SIZE), np.uint8), np.empty(n_groups, np.float32), np.empty(n_groups, np.float32))
        start = 0
        for raw in self._raw_rows(tensor):
            part = unpack_blocks(raw, tensor.type.name, tensor.type.block_bytes)
            rows = slice(start, start + len(part.scales))
            whole.codes[rows], whole.scales[rows], whole.offsets[rows] = part
            start = rows.stop
        _finite(whole.scales, self.name, tensor_name)
        _finite(whole.offsets, self.name, tensor_name)
        return whole

    def _raw_rows(self, tensor: GgufTensor) -> Iterator[bytes]:
        """The bytes of consecutive rows, as many at once as are `BLOCK_BYTES` of float32 (or one)."""
        n_rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
        row_bytes = tensor.n_bytes // n_rows
        step = max(1, BLOCK_BYTES // (4 * tensor.shape[-1]))
        for start in range(0, n_rows, step):
            n_bytes = (min(start + step, n_rows) - start) * row_bytes
            yield read_extent(self.path, tensor.offset + start * row_bytes, n_bytes, tensor.name)


def _dequantized(raw: bytes, tensor: GgufTensor) -> FloatArray:
    """Flat float32 values. Blocks never cross rows, so one long row is the cheapest shape for gguf-py."""
    name = tensor.type.name
    if name in ("F32", "F16"):
        return as_float32(raw, name)
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise BackendUnavailableError(
            f"{name} weights cannot be read here", why="the gguf package is not installed", fix="pip install 'ondevice-toolkit[convert]'"
        ) from error
    values: FloatArray = dequantize(np.frombuffer(raw, np.uint8)[None, :], GGMLQuantizationType[name]).reshape(-1)
    return values


def _finite(block: FloatArray, file_name: str, tensor_name: str) -> FloatArray:
    if not np.isfinite(block).all():
        raise FormatError(
            f"{file_name} holds damaged weights",
            why=f"{tensor_name} has NaN or infinite values",
            fix="download it again and compare its SHA-256 with the publisher's",
        )
    return block


class GgufTensorSource:
    """Tensors of a GGUF file under Hugging Face names, shapes and layout.

    Raises (on creation):
        FormatError: A tensor is missing, unknown, or has another shape than the spec says.
        UnsupportedModelError: A tensor is stored in a type that cannot be read.
    """

    def __init__(self, file: GgufFile, family: Family, spec: ModelSpec) -> None:
        self.file, self.family, self.spec = file, family, spec
        self._shapes = family.tensor_shapes(spec)
        self._gguf_names = {hf: gguf for gguf, hf in family.gguf_names(spec).items()}
        check_tensor_set(file, family, spec)

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def load(self, name: str) -> FloatArray:
        """One tensor as float32 in Hugging Face layout."""
        gguf_name = self._gguf_names[name]
        _, array = self.family.from_gguf(gguf_name, self.file.load(gguf_name), self.spec)
        return np.ascontiguousarray(array)

    def blocks(self, name: str) -> Iterator[FloatArray]:
        """The same tensor in consecutive blocks of rows: small for the large tables, one block for the rest."""
        gguf_name = self._gguf_names[name]
        if gguf_name in GGUF_TABLES:
            yield from self.file.blocks(gguf_name)
        else:
            yield self.load(name)

    def stored_kind(self, name: str) -> str | None:
        """GGUF's name of the block type a tensor is stored in; None for floats."""
        kind = self.file.header.tensors[self._gguf_names[name]].type
        return kind.name if kind.block_size > 1 else None

    def stored(self, name: str) -> StoredBlocks | None:
        """The file's own codes, rows in Hugging Face order; None for a type not in `BLOCK_BITS`."""
        kind, shape = self.stored_kind(name), self._shapes[name]
        if kind not in BLOCK_BITS or len(shape) != 2:
            return None

        def in_order(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            # All a family does to a matrix is to reorder its rows, so it does the same to what its rows are made of.
            return np.ascontiguousarray(self.family.from_gguf(gguf_name, array.reshape(shape[0], -1), self.spec)[1])

        gguf_name = self._gguf_names[name]
        blocks = self.file.load_blocks(gguf_name)
        return StoredBlocks(kind, BLOCK_BITS[kind], GROUP_SIZE, in_order(blocks.codes), in_order(blocks.scales), in_order(blocks.offsets))


def check_tensor_set(file: GgufFile, family: Family, spec: ModelSpec) -> None:
    """Compare the file's tensors with what the spec needs: none missing, none extra, all shapes and types right."""
    shapes, names = family.tensor_shapes(spec), family.gguf_names(spec)
    tensors = file.header.tensors
    ignored = {"rope_freqs.weight"}
    missing = [gguf for gguf in names if gguf not in tensors]
    extra = [name for name in tensors if name not in names and name not in ignored]
    if missing or extra:
        parts = [f"{len(group)} {kind}, first {group[0]}" for kind, group in (("missing", missing), ("unknown", extra)) if group]
        raise FormatError(
            f"{file.name} does not hold the tensors of a {spec.n_layers}-layer {spec.model_type}",
            why="; ".join(parts),
            fix="download it again; if it is a variant of the architecture, it is not supported",
        )
    for gguf_name, hf_name in names.items():
        tensor = tensors[gguf_name]
        if tensor.shape != shapes[hf_name]:
            raise FormatError(
                f"{file.name} does not match its own header",
                why=f"{gguf_name} has shape {tensor.shape}, the dimensions ask for {shapes[hf_name]}",
                fix="download it again",
            )
        if tensor.type.name not in READABLE:
            raise UnsupportedModelError(
                f"{file.name} stores weights as {tensor.type.name}",
                why=f"{gguf_name} cannot be turned into float32",
                fix="use another quantization of this model, such as Q8_0 or BF16",
            )
