"""Hugging Face checkpoints whose linears GPTQ or AWQ packed to 4 bits: taken apart by their own scales and zero points.

Both store, for a linear, int32 words of eight 4-bit codes, one float16 scale and one 4-bit zero point for each group of input
features and each output feature, and mean scale * (code - zero). They differ in what a word packs and in which order:

- GPTQ packs eight inputs of one output, in order; `g_idx` names the group of each input. Zero points are stored less one,
  unless the format is `gptq_v2`.
- AWQ packs eight outputs of one input, in the order 0 2 4 6 1 3 5 7; groups are consecutive inputs.

Source: the packing code of AutoGPTQ, GPTQModel and AutoAWQ, whose files these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.architectures.base import FloatArray
from converters.architectures.fields import Fields
from converters.read.hf_tensors import BLOCK_BYTES, HfTensorSource, check_tensor_set
from converters.read.safetensors_header import StoredTensor
from converters.read.tensor_bytes import as_float32, read_extent
from converters.stored_blocks import FloatStored
from toolkit.errors import FormatError, UnsupportedModelError

BITS = 4
_PER_WORD = 8
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_KEYS = ("quantization_config", "quantization")
_NEEDS = {
    "bitsandbytes": "its NF4 code table and nested absolute maxima",
    "fp8": "8-bit floats with a scale a block",
    "compressed-tensors": "its own packing for each of its formats",
    "exl2": "groups of several bit widths in one matrix",
    "aqlm": "its code books",
    "hqq": "its zero points in float, packed along the outputs",
    "mxfp4": "4-bit floats with shared exponents",
}
_FORMATS = {"gptq": ("gptq", "gptq_v2"), "awq": ("gemm",)}


@dataclass(frozen=True)
class Packing:
    """How a checkpoint's linears are packed.

    Args:
        method: `gptq` or `awq`.
        group_size: Inputs that share a scale; None for all of them.
        zero_offset: What is added to a stored zero point.
    """

    method: str
    group_size: int | None
    zero_offset: int

    @property
    def name(self) -> str:
        return f"{self.method.upper()}-int4" + (f"-g{self.group_size}" if self.group_size else "")

    def n_weights(self, tensor_name: str, n_elements: int) -> int:
        """Weights that a stored tensor stands for: eight a word of codes, none for scales and what goes with them."""
        part = tensor_name.rpartition(".")[2]
        return _PER_WORD * n_elements if part == "qweight" else 0 if part in ("qzeros", "scales", "g_idx") else n_elements

    def n_groups(self, in_features: int) -> int:
        return -(-in_features // (self.group_size or in_features))


def packing_of(config: Mapping[str, Any], origin: str) -> Packing | None:
    """The packing a config.json states; None for a checkpoint that is not quantized.

    Raises:
        UnsupportedModelError: Quantized in a way that is not read; says what reading it would need.
        FormatError: A value cannot be.
    """
    stated = next((config[key] for key in _KEYS if config.get(key)), None)
    if stated is None:
        return None
    method = str(stated.get("quant_method", "unnamed")) if isinstance(stated, Mapping) else str(stated)
    if not isinstance(stated, Mapping) or method not in _FORMATS:
        raise _refusal(origin, method, f"config.json says quant_method {method!r}", _NEEDS.get(method, "that method's own unpacking"))
    fields = Fields(stated, f"{origin}/config.json quantization_config")
    bits = fields.integer("bits", maximum=32)
    if bits != BITS:
        needs = "codes that cross the words of the file" if bits == 3 else f"words of {32 // min(bits, 32)} codes"
        raise _refusal(origin, method, f"it has {bits} bits a weight", needs)
    default = _FORMATS[method][0]
    key = "checkpoint_format" if method == "gptq" else "version"
    layout = fields.text(key, default=default).lower()
    if layout not in _FORMATS[method]:
        raise _refusal(origin, method, f"its {key} is {layout!r}", f"the layout of {layout}; read are {', '.join(_FORMATS[method])}")
    if method == "awq" and not fields.boolean("zero_point", default=True):
        raise _refusal(origin, method, "it has no zero points", "the signed codes of that layout")
    whole = fields.data.get("group_size") == -1
    group_size = None if whole else fields.integer("group_size", maximum=2**20, default=128)
    return Packing(method, group_size, 1 if layout == "gptq" else 0)


def without_packing(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as that of the float model it stands for."""
    return {key: value for key, value in config.items() if key not in _KEYS}


def _refusal(origin: str, method: str, why: str, needs: str) -> UnsupportedModelError:
    fix = f"use the float checkpoint it was made from; reading this one would need {needs}"
    return UnsupportedModelError(f"{origin} is already quantized ({method})", why=why, fix=fix)


@dataclass(frozen=True)
class PackedMatrix:
    """One packed linear: what its file holds, for a matrix of shape (out_features, in_features)."""

    codes: StoredTensor
    zeros: StoredTensor
    scales: StoredTensor
    groups: StoredTensor | None
    shape: tuple[int, int]
    packing: Packing

    def load(self) -> FloatArray:
        """The matrix in float32: scale * (code - zero), exact."""
        out_features, in_features = self.shape
        scales = as_float32(_read(self.scales), self.scales.dtype).reshape(self.scales.shape)
        if not np.isfinite(scales).all():
            raise _damaged(self.scales, "it has NaN or infinite values")
        group = self._group_of_inputs(len(scales), in_features)
        zeros = self._outputs(self.zeros).astype(np.float32) + np.float32(self.packing.zero_offset)
        if self.packing.method == "gptq":
            words = _words(self.codes)
            codes = _nibbles(words).swapaxes(1, 2).reshape(in_features, out_features)
        else:
            codes = self._outputs(self.codes)
        weights: FloatArray = codes.astype(np.float32)
        weights -= zeros[group]
        weights *= scales[group]
        return np.ascontiguousarray(weights.T)

    def _outputs(self, tensor: StoredTensor) -> npt.NDArray[np.uint8]:
        """Codes of words that pack eight outputs: (rows, out_features)."""
        nibbles = _nibbles(_words(tensor))
        if self.packing.method == "awq":
            nibbles = nibbles[..., np.argsort(_AWQ_ORDER)]
        return nibbles.reshape(len(nibbles), -1)

    def _group_of_inputs(self, n_groups: int, in_features: int) -> npt.NDArray[np.int64]:
        if self.groups is None:
            return np.arange(in_features) // (self.packing.group_size or in_features)
        group = np.frombuffer(_read(self.groups), "<i4").astype(np.int64)
        if group.min(initial=0) < 0 or group.max(initial=0) >= n_groups:
            raise _damaged(self.groups, f"it names group {group.max()} of {n_groups}")
        return group


class PackedInt4Source(FloatStored):
    """Tensors of a packed checkpoint: its linears taken apart, everything else as stored.

    Args:
        tensors: Stored tensors by text-model name.
        shapes: What the spec needs: name to shape.
        packing: From `packing_of`.
        origin: The checkpoint's name, for errors.

    Raises (on creation):
        FormatError: A tensor is missing, unknown, or has another shape or dtype than packing and spec ask for.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]], packing: Packing, origin: str) -> None:
        self._shapes = dict(shapes)
        self._packed, rest = _packed_matrices(tensors, shapes, packing, origin)
        self._floats = HfTensorSource(rest, _without(shapes, self._packed), origin)

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def load(self, name: str) -> FloatArray:
        """One tensor as float32."""
        return self._packed[name].load() if name in self._packed else self._floats.load(name)

    def blocks(self, name: str) -> Iterator[FloatArray]:
        """The same values as consecutive blocks of rows; a packed matrix is taken apart whole."""
        if name not in self._packed:
            yield from self._floats.blocks(name)
            return
        array = self.load(name)
        step = max(1, BLOCK_BYTES // (4 * array.shape[1]))
        yield from (array[start : start + step] for start in range(0, len(array), step))


def check_packed_set(tensors: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]], packing: Packing, origin: str) -> None:
    """Compare what is stored with what packing and spec need; no value is read. Raises as `PackedInt4Source`."""
    packed, rest = _packed_matrices(tensors, shapes, packing, origin)
    check_tensor_set(rest, _without(shapes, packed), origin)


def _packed_matrices(
    tensors: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]], packing: Packing, origin: str
) -> tuple[dict[str, PackedMatrix], dict[str, StoredTensor]]:
    """The packed linears by name, and the tensors that belong to none of them."""
    rest = dict(tensors)
    packed = {
        name: _packed_matrix(rest, name, shape, packing, origin)
        for name, shape in shapes.items()
        if len(shape) == 2 and name not in rest and name.removesuffix("weight") + "qweight" in rest
    }
    return packed, rest


def _without(shapes: Mapping[str, tuple[int, ...]], packed: Mapping[str, PackedMatrix]) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in shapes.items() if name not in packed}


def _packed_matrix(rest: dict[str, StoredTensor], name: str, shape: tuple[int, ...], packing: Packing, origin: str) -> PackedMatrix:
    """Take the tensors of one linear out of `rest`, each with the shape and dtype it must have."""
    module, (rows, columns) = name.removesuffix("weight"), shape
    n_groups = packing.n_groups(columns)
    wanted: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
        "qweight": ((columns // _PER_WORD, rows) if packing.method == "gptq" else (columns, rows // _PER_WORD), ("I32",)),
        "qzeros": ((n_groups, rows // _PER_WORD), ("I32",)),
        "scales": ((n_groups, rows), ("F16", "BF16", "F32")),
        "g_idx": ((columns,), ("I32",)),
    }
    found: dict[str, StoredTensor] = {}
    for part, (part_shape, dtypes) in wanted.items():
        tensor = rest.pop(module + part, None)
        if tensor is None and part == "g_idx":
            continue
        if tensor is None or tensor.shape != part_shape or tensor.dtype not in dtypes or rows % _PER_WORD or columns % _PER_WORD:
            is_there = "is missing" if tensor is None else f"is {tensor.dtype} {tensor.shape}"
            why = f"{module}{part} {is_there}; {packing.name} of {shape} needs {' or '.join(dtypes)} {part_shape}"
            raise FormatError(f"{origin} does not hold what its quantization_config says", why=why, fix="download it again")
        found[part] = tensor
    return PackedMatrix(found["qweight"], found["qzeros"], found["scales"], found.get("g_idx"), (rows, columns), packing)


def _words(tensor: StoredTensor) -> npt.NDArray[np.uint32]:
    return np.frombuffer(_read(tensor), "<u4").reshape(tensor.shape)


def _nibbles(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """The eight codes of each word, lowest bits first: one more axis of 8."""
    shifts = np.arange(_PER_WORD, dtype=np.uint32) * np.uint32(BITS)
    return ((words[..., None] >> shifts) & np.uint32(15)).astype(np.uint8)


def _read(tensor: StoredTensor) -> bytes:
    return read_extent(tensor.path, tensor.offset, tensor.n_bytes, tensor.name)


def _damaged(tensor: StoredTensor, why: str) -> FormatError:
    return FormatError(f"{Path(tensor.path).name} holds damaged weights", why=f"{tensor.name}: {why}", fix="download it again")
