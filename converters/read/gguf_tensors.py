"""Weights of a GGUF file as float32, one tensor or one block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converters.architectures.base import Family, FloatArray
from converters.architectures.decoder import GGUF_TABLES
from converters.read.gguf_header import GgufHeader, GgufTensor, read_gguf_header
from converters.read.gguf_types import READABLE
from converters.spec import ModelSpec
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
        row_length = tensor.shape[-1]
        n_rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
        row_bytes = tensor.n_bytes // n_rows
        step = max(1, BLOCK_BYTES // (4 * row_length))
        with self.path.open("rb", buffering=0) as stream:
            for start in range(0, n_rows, step):
                stop = min(start + step, n_rows)
                stream.seek(tensor.offset + start * row_bytes)
                raw = stream.read((stop - start) * row_bytes)
                if len(raw) != (stop - start) * row_bytes:
                    raise FormatError(f"{self.name} ended while it was read", why=f"{tensor_name} is cut", fix="download it again")
                yield _finite(_dequantized(raw, tensor).reshape(stop - start, row_length), self.name, tensor_name)


def _dequantized(raw: bytes, tensor: GgufTensor) -> FloatArray:
    """Flat float32 values. Blocks never cross rows, so one long row is the cheapest shape for gguf-py."""
    name = tensor.type.name
    if name == "F32":
        return np.frombuffer(raw, "<f4")
    if name == "F16":
        return np.frombuffer(raw, "<f2").astype(np.float32)
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
