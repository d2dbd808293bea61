"""Weights of a CTranslate2 Whisper as float32 under Hugging Face names, one tensor or one block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from converters.architectures.base import FloatArray
from converters.read.ctranslate2_header import Ctranslate2Header, Variable
from converters.read.tensor_bytes import as_float32, read_extent
from converters.stored_blocks import FloatStored
from toolkit.errors import FormatError, UnsupportedModelError

BLOCK_BYTES = 16 * 2**20
READABLE = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}  # CTranslate2's name -> safetensors' code
_AGAIN = "download it again and compare its SHA-256 with the publisher's"
_TABLES = {
    "decoder.embed_tokens.weight": "decoder/embeddings/weight",
    "decoder.embed_positions.weight": "decoder/position_encodings/encodings",
    "encoder.embed_positions.weight": "encoder/position_encodings/encodings",
}
_BLOCKS = {"self_attn": "self_attention", "encoder_attn": "attention", "fc1": "ffn/linear_0", "fc2": "ffn/linear_1"}
_NORMS = {"self_attn_layer_norm": "self_attention", "encoder_attn_layer_norm": "attention", "final_layer_norm": "ffn"}
# Hugging Face projection -> (CTranslate2 linear, which of its parts, how many parts it has)
_SELF = {"q_proj": (0, 0, 3), "k_proj": (0, 1, 3), "v_proj": (0, 2, 3), "out_proj": (1, 0, 1)}
_CROSS = {"q_proj": (0, 0, 1), "k_proj": (1, 0, 2), "v_proj": (1, 1, 2), "out_proj": (2, 0, 1)}


@dataclass(frozen=True)
class Place:
    """Where a Hugging Face tensor lies: part `part_index` of the `n_parts` equal parts of a variable's rows."""

    variable: str
    part_index: int = 0
    n_parts: int = 1


def place_of(name: str) -> Place:
    """Where CTranslate2 keeps a tensor of `converters.architectures.whisper.tensor_shapes`."""
    plain = name.removeprefix("model.")
    if plain in _TABLES:
        return Place(_TABLES[plain])
    words = plain.split(".")
    stack, ending = words[0], words[-1]
    if words[1] == "layer_norm":
        return Place(f"{stack}/layer_norm/{_norm(ending)}")
    if words[1] != "layers":
        return Place("/".join(words))  # the two convolutions
    layer = f"{stack}/layer_{words[2]}"
    if words[3] in _NORMS:
        return Place(f"{layer}/{_NORMS[words[3]]}/layer_norm/{_norm(ending)}")
    if words[3] in ("fc1", "fc2"):
        return Place(f"{layer}/{_BLOCKS[words[3]]}/{ending}")
    linear, part_index, n_parts = (_SELF if words[3] == "self_attn" else _CROSS)[words[4]]
    return Place(f"{layer}/{_BLOCKS[words[3]]}/linear_{linear}/{ending}", part_index, n_parts)


def _norm(ending: str) -> str:
    return {"weight": "gamma", "bias": "beta"}[ending]


class Ctranslate2TensorSource(FloatStored):
    """Tensors of a model.bin under Hugging Face names, shapes and layout.

    Raises (on creation):
        FormatError: A variable is missing, unknown or has another shape; a key projection has a bias; the output layer is
            not the token table.
        UnsupportedModelError: Weights are stored as integers.
    """

    def __init__(self, path: Path, header: Ctranslate2Header, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.path, self.header, self._shapes = path, header, dict(shapes)
        self._places = check_variables(header, shapes, path.name)
        self._check_key_biases()

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def load(self, name: str) -> FloatArray:
        """One tensor as float32."""
        out = np.empty(self._shapes[name], np.float32)
        rows, start = out.reshape(out.shape[0], -1), 0
        for block in self.blocks(name):
            rows[start : start + len(block)] = block.reshape(len(block), -1)
            start += len(block)
        return out

    def blocks(self, name: str) -> Iterator[FloatArray]:
        """Consecutive rows as (n_rows, ...) float32 blocks of at most `BLOCK_BYTES` (or one row).

        Raises:
            FormatError: The file shrank since its header was read, or a value is NaN or infinite.
        """
        place, shape = self._places[name], self._shapes[name]
        variable = self.header.variables[place.variable]
        row_length = prod(shape[1:])
        first = place.part_index * shape[0]
        step = max(1, BLOCK_BYTES // (4 * row_length))
        for start in range(0, shape[0], step):
            count = min(step, shape[0] - start)
            values = self._values(variable, (first + start) * row_length, count * row_length)
            yield values.reshape(count, *shape[1:])

    def _values(self, variable: Variable, start: int, count: int) -> FloatArray:
        size = variable.n_bytes // prod(variable.shape)
        raw = read_extent(self.path, variable.offset + start * size, count * size, variable.name)
        values = as_float32(raw, READABLE[variable.dtype])
        if not np.isfinite(values).all():
            raise FormatError(f"{self.path.name} holds damaged weights", why=f"{variable.name} has NaN or infinite values", fix=_AGAIN)
        return values

    def _check_key_biases(self) -> None:
        """Hugging Face's key projections have no bias, so what CTranslate2 stores for them must be zero."""
        for name, place in self._places.items():
            if name.endswith("k_proj.weight"):
                bias, width = self.header.variables[_bias_of(place)], self._shapes[name][0]
                if self._values(bias, place.part_index * width, width).any():
                    raise _no_whisper(self.path.name, f"{bias.name} is not zero where the key projection has no bias")


def check_variables(header: Ctranslate2Header, shapes: Mapping[str, tuple[int, ...]], file_name: str) -> dict[str, Place]:
    """Where each tensor lies, after comparing the variables of a file with what a spec needs; no value is read.

    Raises:
        FormatError: A variable is missing, unknown or has another shape; the output layer is not the token table.
        UnsupportedModelError: Weights are stored as integers.
    """
    places = {name: place_of(name) for name in shapes}
    used = {place.variable for place in places.values()}
    _refuse_codes(header, used, file_name)  # first, as their scales are variables no float file has
    missing = sorted(used - set(header.variables))
    key_biases = {name.removesuffix("weight") + "bias" for name in used if name.endswith("/weight") and "attention/linear_" in name}
    extra = [name for name, variable in header.variables.items() if name not in used | key_biases and variable.small is None]
    if missing or extra:
        parts = [f"{len(group)} {kind}, first {group[0][:80]}" for kind, group in (("missing", missing), ("unknown", extra)) if group]
        raise _no_whisper(file_name, "; ".join(parts))
    for name, place in places.items():
        _check_variable(header, name, place, shapes[name], file_name)
    if header.aliases.get("decoder/projection/weight") != "decoder/embeddings/weight":
        raise _no_whisper(file_name, "the output layer decoder/projection/weight is not the token table")
    return places


def _refuse_codes(header: Ctranslate2Header, used: Set[str], file_name: str) -> None:
    for name, variable in header.variables.items():
        if name in used and variable.dtype not in READABLE:
            raise UnsupportedModelError(
                f"{file_name} stores weights as {variable.dtype}",
                why=f"{name} holds codes; {', '.join(READABLE)} are read",
                fix="use the float16 conversion of this model, or the Hugging Face checkpoint",
            )


def _check_variable(header: Ctranslate2Header, name: str, place: Place, shape: tuple[int, ...], file_name: str) -> None:
    variable = header.variables[place.variable]
    if variable.shape != (place.n_parts * shape[0], *shape[1:]):
        raise _no_whisper(file_name, f"{place.variable} has shape {variable.shape}, {name} asks for {place.n_parts} x {shape}")
    if name.endswith("k_proj.weight"):
        bias = header.variables.get(_bias_of(place))
        if bias is None or bias.shape != (place.n_parts * shape[0],) or bias.dtype not in READABLE:
            raise _no_whisper(file_name, f"{_bias_of(place)} is missing or has the wrong shape")


def _bias_of(place: Place) -> str:
    return place.variable.removesuffix("weight") + "bias"


def _no_whisper(file_name: str, why: str) -> FormatError:
    return FormatError(f"{file_name} does not hold the weights of a Whisper model", why=why, fix=_AGAIN)
