"""Which GGUF tensor type carries out a rule, and what that costs in bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from converters.read.gguf_types import TENSOR_TYPES, TensorType
from converters.recipe import Recipe
from converters.rule import Algorithm, Granularity, Rule
from toolkit.errors import UsageError

BLOCK = 32  # weights that share a float16 scale in every type below
TYPES: dict[str, TensorType] = {tensor_type.name: tensor_type for tensor_type in TENSOR_TYPES.values()}
TYPE_IDS: dict[str, int] = {tensor_type.name: type_id for type_id, tensor_type in TENSOR_TYPES.items()}
VECTORS = TYPES["F32"]  # llama.cpp adds and multiplies norms and biases in float32
# What llama.cpp calls a file whose matrices are of one type (general.file_type).
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9}
DESCRIPTIONS = {
    "F32": "float32",
    "F16": "float16",
    "Q8_0": "Q8_0: 8-bit codes, one float16 scale for 32 weights",
    "Q5_0": "Q5_0: 5-bit codes, one float16 scale for 32 weights",
    "Q5_1": "Q5_1: 5-bit codes, a float16 scale and minimum for 32 weights",
    "Q4_0": "Q4_0: 4-bit codes, one float16 scale for 32 weights",
    "Q4_1": "Q4_1: 4-bit codes, a float16 scale and minimum for 32 weights",
}


class _Integers(NamedTuple):
    bits: int
    is_symmetric: bool


_INTEGERS = {_Integers(8, True): "Q8_0", _Integers(4, True): "Q4_0", _Integers(4, False): "Q4_1"}
_INTEGERS |= {_Integers(5, True): "Q5_0", _Integers(5, False): "Q5_1"}


def storage(rule: Rule) -> TensorType:
    """The tensor type that carries out a rule; a rule that keeps the source's blocks has none of its own.

    int8 with a scale a row, or a tensor, is stored finer than asked, as Q8_0. Fewer bits are never stored finer or coarser:
    their recipes name a group size because it decides what is left of the model.

    Raises:
        ValueError: GGUF has no such type, or this target does not choose such codes.
    """
    if rule.bits == 32:
        return TYPES["F32"]
    if rule.bits == 16:
        return TYPES["F16"]
    if rule.algorithm is not Algorithm.ROUND:
        raise ValueError(f"algorithm {rule.algorithm}: GGUF blocks are written by rounding here")
    if rule.int8_rows:
        raise ValueError(f"int8_rows {rule.int8_rows}: a GGUF tensor has one type for all its rows")
    name = _INTEGERS.get(_Integers(rule.bits or 0, rule.is_symmetric))
    if name is None:
        raise ValueError(f"{rule.bits} bits, {'symmetric' if rule.is_symmetric else 'with zero points'}: GGUF has no such simple type")
    is_finer_int8 = name == "Q8_0" and rule.granularity is not Granularity.BLOCKWISE
    if rule.group_size != BLOCK and not is_finer_int8:
        asked = f"group_size {rule.group_size}" if rule.group_size else f"one scale a {rule.granularity}"
        raise ValueError(f"{rule.bits} bits with {asked}: {name} has one scale for {BLOCK} weights")
    return TYPES[name]


def stored_bytes(tensor_type: TensorType, shape: Sequence[int]) -> int:
    """Bytes of a tensor of this shape, outermost dimension first.

    Raises:
        ValueError: Its rows are no whole number of blocks.
    """
    if shape[-1] % tensor_type.block_size:
        raise ValueError(f"{tensor_type.name} needs rows of a multiple of {tensor_type.block_size} weights, found {shape[-1]}")
    return math.prod(shape) // tensor_type.block_size * tensor_type.block_bytes


def check_recipe(recipe: Recipe) -> None:
    """Refuse a recipe that no GGUF tensor type carries out.

    Raises:
        UsageError: Names the rule and what GGUF has instead.
    """
    named = {f"[rules.{kind}]": rule for kind, rule in recipe.rules.items()}
    named |= {f"[[overrides]] {each.tensors!r}": each.rule for each in recipe.overrides}
    why = f"promotion to {recipe.promotion.bits_per_weight} bits a weight: it needs calibration" if recipe.promotion else ""
    for where, rule in named.items():
        try:
            if not rule.is_keep:
                storage(rule)
        except ValueError as error:
            why = why or f"{where}: {error}"
    if why:
        fix = "use fp32, fp16, int8, int4-g32, or keep for a GGUF source; or another target"
        raise UsageError(f"recipe {recipe.name} cannot be written for GGUF", why=why, fix=fix)
