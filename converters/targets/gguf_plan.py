"""What a GGUF file is going to hold: each tensor's name, type and shape, and where its bytes come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from converters.architectures import family_of
from converters.architectures.decoder import GGUF_TABLES
from converters.architectures.rope import llama3_factors
from converters.read.gguf_header import GgufTensor
from converters.read.gguf_tensors import GgufTensorSource
from converters.read.gguf_types import TensorType
from converters.targets.gguf_storage import TYPES, VECTORS, storage, stored_bytes
from toolkit.errors import FormatError, ToolkitError, UsageError

if TYPE_CHECKING:
    from converters.architectures.base import FloatArray
    from converters.checkpoint import Checkpoint
    from converters.recipe import Recipe

ROPE_FACTORS = "rope_freqs.weight"
_COPY_BYTES = 16 * 2**20
_FLOAT16_MAX = 65504.0


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor to write.

    Args:
        name: Its name in the file.
        type: How it is stored.
        shape: Outermost dimension first.
        n_bytes: What `blocks` come to.
        blocks: Gives its bytes in order, computed as they are asked for.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    n_bytes: int
    blocks: Callable[[], Iterator[bytes]]


def plan_tensors(checkpoint: Checkpoint, recipe: Recipe) -> list[PlannedTensor]:
    """Every tensor of the file, in llama.cpp's order. Reads no weight.

    Raises:
        UsageError: A rule does not fit a tensor, or keeps blocks that the source does not have.
    """
    family = family_of(checkpoint.spec.model_type)
    planned = _rope_factors(checkpoint, recipe)
    for gguf_name, hf_name in family.gguf_names(checkpoint.spec).items():
        shape = checkpoint.tensors.shape(hf_name)
        rule = recipe.rule_for(hf_name, shape)
        if recipe.is_keep or (rule is not None and rule.is_keep):
            planned.append(_kept(checkpoint, recipe, gguf_name))
            continue
        try:
            tensor_type = VECTORS if rule is None else storage(rule)
            n_bytes = stored_bytes(tensor_type, shape)
        except ValueError as error:
            what, why = f"recipe {recipe.name} does not fit {hf_name}", f"{error} (shape {shape})"
            raise UsageError(what, why=why, fix="use fp16 or fp32 for it, whose rows may have any length") from error
        blocks = partial(_encoded_blocks, checkpoint, gguf_name, hf_name, tensor_type)
        planned.append(PlannedTensor(gguf_name, tensor_type, shape, n_bytes, blocks))
    return planned


def _kept(checkpoint: Checkpoint, recipe: Recipe, gguf_name: str) -> PlannedTensor:
    """A tensor copied from the source byte for byte, whatever its type: quantized again, it would lose."""
    source = checkpoint.tensors
    if not isinstance(source, GgufTensorSource):
        raise UsageError(
            f"recipe {recipe.name} cannot be written for GGUF from {checkpoint.name}",
            why="it keeps the blocks of a GGUF file, and the source is none, or its weights were changed by an adapter",
            fix="use int8 or int4-g32",
        )
    tensor = source.file.header.tensors[gguf_name]
    return PlannedTensor(gguf_name, tensor.type, tensor.shape, tensor.n_bytes, partial(_copied_blocks, source, tensor))


def _copied_blocks(source: GgufTensorSource, tensor: GgufTensor) -> Iterator[bytes]:
    with source.file.path.open("rb", buffering=0) as stream:
        stream.seek(tensor.offset)
        for start in range(0, tensor.n_bytes, _COPY_BYTES):
            wanted = min(_COPY_BYTES, tensor.n_bytes - start)
            raw = stream.read(wanted)
            if len(raw) != wanted:
                raise FormatError(f"{source.file.name} ended while it was read", why=f"{tensor.name} is cut", fix="download it again")
            yield raw


def _encoded_blocks(checkpoint: Checkpoint, gguf_name: str, hf_name: str, tensor_type: TensorType) -> Iterator[bytes]:
    """Large tables row block by row block, all else whole: permutations need all rows of a head."""
    if gguf_name in GGUF_TABLES:
        for block in checkpoint.tensors.blocks(hf_name):
            yield encode(block, tensor_type, hf_name)
        return
    family = family_of(checkpoint.spec.model_type)
    array = family.to_gguf(hf_name, checkpoint.tensors.load(hf_name), checkpoint.spec)
    yield encode(np.ascontiguousarray(array), tensor_type, hf_name)


def encode(array: FloatArray, tensor_type: TensorType, hf_name: str) -> bytes:
    """float32 values as the bytes of a tensor type.

    Raises:
        ToolkitError: A value, or a block's scale, is too large for float16.
    """
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    if tensor_type.name == "F32":
        return array.astype("<f4", copy=False).tobytes()
    limit = {"F16": 1.0, "Q8_0": 127.0, "Q4_0": 8.0, "Q5_0": 16.0, "Q4_1": 1.0, "Q5_1": 1.0}[tensor_type.name] * _FLOAT16_MAX
    if (largest := float(np.abs(array).max(initial=0.0))) > limit:
        why = f"it holds {largest:.6g}; {tensor_type.name} with its float16 scales ends at {limit:.6g}"
        raise ToolkitError(f"{hf_name} does not fit in {tensor_type.name}", why=why, fix="use fp32")
    return bytes(quantize(array, GGMLQuantizationType[tensor_type.name]).tobytes())


def _rope_factors(checkpoint: Checkpoint, recipe: Recipe) -> list[PlannedTensor]:
    """Llama 3's frequency divisors as the tensor llama.cpp looks for; empty for every other RoPE."""
    spec, source = checkpoint.spec, checkpoint.tensors
    if recipe.is_keep and isinstance(source, GgufTensorSource):
        return [_kept(checkpoint, recipe, ROPE_FACTORS)] if ROPE_FACTORS in source.file.header.tensors else []
    rope = spec.rope.get("full")
    if rope is None or rope.scaling is None or rope.scaling["rope_type"] != "llama3":
        return []
    factors = llama3_factors(rope.theta, spec.head_dim, rope.scaling).astype("<f4")
    return [PlannedTensor(ROPE_FACTORS, TYPES["F32"], factors.shape, factors.nbytes, lambda: iter([factors.tobytes()]))]


def bits_per_weight(planned: list[PlannedTensor], n_parameters: int) -> float:
    """Bits of all tensors over the checkpoint's parameters; RoPE factors are no weights."""
    return sum(8 * tensor.n_bytes for tensor in planned if tensor.name != ROPE_FACTORS) / n_parameters
