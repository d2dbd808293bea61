"""Rules and the GGUF types that carry them out."""

from __future__ import annotations

import pytest

from converters.read.gguf_types import TENSOR_TYPES
from converters.recipe import Recipe, load_recipe
from converters.rule import Activations, Algorithm, Granularity, Rule, TensorClass
from converters.targets.gguf_storage import DESCRIPTIONS, FILE_TYPES, check_recipe, storage, stored_bytes
from toolkit.errors import UsageError


def blockwise(bits: int, group_size: int = 32, *, is_symmetric: bool = True) -> Rule:
    return Rule(bits, Algorithm.ROUND, Granularity.BLOCKWISE, group_size, is_symmetric, Activations.INT8_DYNAMIC)


CARRIED_OUT = {
    "F32": Rule(32, Algorithm.CAST),
    "F16": Rule(16, Algorithm.CAST),
    "Q8_0": blockwise(8),
    "Q5_0": blockwise(5),
    "Q5_1": blockwise(5, is_symmetric=False),
    "Q4_0": blockwise(4),
    "Q4_1": blockwise(4, is_symmetric=False),
}


@pytest.mark.parametrize("name", CARRIED_OUT)
def test_a_rule_has_one_type(name: str) -> None:
    assert storage(CARRIED_OUT[name]).name == name
    assert name in DESCRIPTIONS and name in FILE_TYPES


def test_int8_with_a_scale_a_row_is_stored_finer() -> None:
    assert storage(Rule(8, Algorithm.ROUND, Granularity.CHANNEL)).name == "Q8_0"


REFUSED = {
    "4 bits with one scale a channel": Rule(4, Algorithm.ROUND, Granularity.CHANNEL),
    "4 bits with group_size 64": blockwise(4, 64),
    "8 bits with group_size 128": blockwise(8, 128),
    "3 bits, symmetric": blockwise(3),
    "8 bits, with zero points": blockwise(8, is_symmetric=False),
    "algorithm hadamard": Rule(8, Algorithm.HADAMARD, Granularity.CHANNEL),
    "algorithm gptq": Rule(4, Algorithm.GPTQ, Granularity.BLOCKWISE, 32),
    "int8_rows 64": Rule(4, Algorithm.ROUND, Granularity.BLOCKWISE, 32, int8_rows=64),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_no_type_stores_is_refused_with_the_rule(why: str) -> None:
    rules = {kind: blockwise(8) for kind in TensorClass} | {TensorClass.LINEAR: REFUSED[why]}
    with pytest.raises(UsageError, match=rf"recipe mine cannot be written for GGUF\n  why: \[rules.linear\]: {why}"):
        check_recipe(Recipe("mine", "", rules, {}))


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8", "int4-g32", "keep"])
def test_the_projects_own_recipes_pass(name: str) -> None:
    check_recipe(load_recipe(name))


def test_rotation_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="recipe int8-hadamard cannot be written for GGUF"):
        check_recipe(load_recipe("int8-hadamard"))


@pytest.mark.parametrize("tensor_type", [t for t in TENSOR_TYPES.values() if t.name in CARRIED_OUT])
def test_bytes_are_those_of_whole_blocks(tensor_type: object) -> None:
    import gguf

    kind = gguf.GGMLQuantizationType[tensor_type.name]  # type: ignore[attr-defined]
    assert stored_bytes(tensor_type, (3, 64)) == 3 * gguf.quant_shape_to_byte_shape((64,), kind)[0]  # type: ignore[arg-type]
