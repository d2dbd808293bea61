"""What each rule becomes in MLX, what it takes on disk, and what is refused before any work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from converters.checkpoint import Checkpoint
from converters.recipe import Override, Promotion, Recipe, load_recipe
from converters.rule import Algorithm, Granularity, Rule, TensorClass
from converters.targets.mlx import TARGET
from converters.targets.mlx_storage import Storage, bits_per_weight, describe, plan_storage
from tests.converters.targets.mlx_models import gguf_checkpoint, hf_checkpoint
from toolkit.errors import UsageError

UP = "model.layers.0.mlp.up_proj.weight"
ROUND = Rule(4, Algorithm.ROUND, Granularity.BLOCKWISE, 32)
KEEP = Rule(None, Algorithm.KEEP)


def recipe_of(rule: Rule, **changes: object) -> Recipe:
    return replace(Recipe("test", "", dict.fromkeys(TensorClass, rule), {}), **changes)  # type: ignore[arg-type]


@pytest.fixture
def llama(tmp_path: Path) -> Checkpoint:
    return hf_checkpoint(tmp_path, "llama")


@pytest.mark.parametrize(
    ("recipe", "storage"),
    [
        ("fp32", Storage("float32")),
        ("fp16", Storage("float16")),
        ("int8", Storage("float16", 8, 64)),
        ("int4-g32", Storage("float16", 4, 32)),
    ],
)
def test_a_recipe_becomes_what_mlx_has(recipe: str, storage: Storage, llama: Checkpoint) -> None:
    plan = plan_storage(llama, load_recipe(recipe))
    assert plan[UP] == plan["model.embed_tokens.weight"] == plan["lm_head.weight"] == storage
    assert plan["model.norm.weight"] == Storage(storage.dtype)
    assert tuple(plan) == llama.tensors.names()


def test_gemma_keeps_the_range_of_bfloat16_unless_told_otherwise(tmp_path: Path) -> None:
    gemma = hf_checkpoint(tmp_path, "gemma3")
    assert plan_storage(gemma, load_recipe("int8"))[UP] == Storage("bfloat16", 8, 64)
    assert plan_storage(gemma, load_recipe("fp16"))[UP] == Storage("float16")


def test_rows_that_64_does_not_divide_get_groups_of_32(tmp_path: Path) -> None:
    plan = plan_storage(hf_checkpoint(tmp_path, "llama", intermediate_size=96), load_recipe("int8"))
    assert plan["model.layers.0.mlp.down_proj.weight"] == Storage("float16", 8, 32)
    assert plan[UP] == Storage("float16", 8, 64)


def test_a_tied_head_is_stored_once(tmp_path: Path) -> None:
    assert "lm_head.weight" not in plan_storage(hf_checkpoint(tmp_path, "llama-tied"), load_recipe("int8"))


def test_bits_per_weight_count_scale_and_bias_of_each_group() -> None:
    assert Storage("float16", 4, 32).stored_bits((8, 64)) == 512 * 4 + 16 * 2 * 16
    assert Storage("float32", 4, 32).stored_bits((8, 64)) == 512 * 4 + 16 * 2 * 32
    assert Storage("bfloat16").stored_bits((8, 64)) == 512 * 16


def test_the_promise_is_of_mlx_s_own_storage(llama: Checkpoint) -> None:
    int4 = load_recipe("int4-g32")
    promised = TARGET.promise(llama, int4)
    assert promised == bits_per_weight(llama, plan_storage(llama, int4))
    assert 5.0 < promised < 5.3  # 4 bits, 32 bits for each 32 weights, and vectors at 16
    assert int4.promised_bits_per_weight(llama.tensor_shapes(), is_tied=False) < promised - 0.3


def test_a_group_that_does_not_divide_names_tensor_and_rule(tmp_path: Path) -> None:
    checkpoint = hf_checkpoint(tmp_path, "llama", intermediate_size=96)
    rule = replace(ROUND, group_size=64)
    with pytest.raises(UsageError, match=r"does not fit model\.layers\.0\.mlp\.down_proj\.weight in MLX") as raised:
        TARGET.promise(checkpoint, recipe_of(rule))
    assert raised.value.why == "[rules.linear] group_size 64 does not divide in_features 96 (shape (64, 96))"
    override = recipe_of(ROUND, overrides=(Override(r".*down_proj\.weight", rule),))
    with pytest.raises(UsageError) as raised:
        TARGET.promise(checkpoint, override)
    assert raised.value.why.startswith("[overrides.0] group_size 64")


def test_a_width_no_group_divides_is_refused_even_where_the_recipe_names_none(tmp_path: Path) -> None:
    checkpoint = hf_checkpoint(tmp_path, "llama", intermediate_size=112)
    with pytest.raises(UsageError, match="down_proj") as raised:
        TARGET.promise(checkpoint, load_recipe("int8"))
    assert "group_size 32 does not divide in_features 112" in raised.value.why


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (Rule(8, Algorithm.HADAMARD, Granularity.CHANNEL), r"\[rules.embedding\] algorithm hadamard has no counterpart"),
        (Rule(4, Algorithm.GPTQ, Granularity.BLOCKWISE, 32), "algorithm gptq has no counterpart"),
        (Rule(7, Algorithm.ROUND, Granularity.CHANNEL), "7 bits: affine codes have 2, 3, 4, 5, 6, 8"),
        (Rule(4, Algorithm.ROUND, Granularity.BLOCKWISE, 16), "group_size 16: affine groups have 32, 64, 128"),
        (replace(ROUND, int8_rows=64), "one width for all its rows"),
    ],
)
def test_a_rule_mlx_has_no_counterpart_for_is_refused(rule: Rule, why: str, llama: Checkpoint) -> None:
    with pytest.raises(UsageError, match=why):
        plan_storage(llama, recipe_of(rule))


def test_a_promotion_is_refused(llama: Checkpoint) -> None:
    with pytest.raises(UsageError, match=r"\[promotion\] MLX bundles are written without calibration"):
        plan_storage(llama, recipe_of(ROUND, promotion=Promotion(5.0, replace(ROUND, bits=8))))


def test_rules_of_two_widths_are_both_carried_out(llama: Checkpoint) -> None:
    mixed = recipe_of(ROUND, overrides=(Override(r"model\.layers\.0\..*", replace(ROUND, bits=6, group_size=64)),))
    plan = plan_storage(llama, mixed)
    assert (plan[UP], plan["lm_head.weight"]) == (Storage("float16", 6, 64), Storage("float16", 4, 32))
    assert describe(llama, plan)["linear"] == [
        "int4 affine, groups of 32, float16 scale and bias",
        "int6 affine, groups of 64, float16 scale and bias",
    ]


@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q4_1", 4), ("Q5_0", 5), ("Q5_1", 5), ("Q8_0", 8)])
def test_kept_codes_have_the_source_s_bits(kind: str, bits: int, tmp_path: Path) -> None:
    plan = plan_storage(gguf_checkpoint(tmp_path, "qwen3", kind), load_recipe("keep"))
    assert plan[UP] == Storage("float16", bits, 32, kept_kind=kind)


class Renamed:
    """A checkpoint's tensors, some said to be of another stored type."""

    def __init__(self, tensors: object, kinds: dict[str, str]) -> None:
        self._tensors, self._kinds = tensors, kinds

    def __getattr__(self, name: str) -> object:
        return getattr(self._tensors, name)

    def stored_kind(self, name: str) -> str | None:
        return self._kinds.get(name) or self._tensors.stored_kind(name)  # type: ignore[attr-defined,no-any-return]


def test_codes_that_do_not_fit_are_refused_by_every_type_s_name(tmp_path: Path) -> None:
    checkpoint = gguf_checkpoint(tmp_path, "llama", "Q4_1")
    kinds = {UP: "Q6_K", "model.layers.1.mlp.up_proj.weight": "Q4_K", "model.layers.2.mlp.up_proj.weight": "Q4_K"}
    renamed = replace(checkpoint, tensors=Renamed(checkpoint.tensors, kinds))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot keep the codes of tiny in MLX") as raised:
        plan_storage(renamed, load_recipe("keep"))
    assert raised.value.why.startswith(f"1 tensor is Q6_K, 2 tensors are Q4_K (first {UP}, Q6_K)")
    assert "--recipe int8" in raised.value.fix


def test_q4_k_is_kept_where_the_user_asked_for_float32_scales(tmp_path: Path) -> None:
    """A rule of 32 bits anywhere makes the bundle's floats float32, and those hold Q4_K's scales."""
    checkpoint = gguf_checkpoint(tmp_path, "llama", "Q4_1")
    renamed = replace(checkpoint, tensors=Renamed(checkpoint.tensors, {UP: "Q4_K"}))  # type: ignore[arg-type]
    rules = {**dict.fromkeys(TensorClass, KEEP), TensorClass.HEAD: Rule(32, Algorithm.CAST)}
    assert plan_storage(renamed, Recipe("test", "", rules, {}))[UP] == Storage("float32", 4, 32, kept_kind="Q4_K")


def test_where_nothing_is_quantized_there_is_nothing_to_keep(llama: Checkpoint) -> None:
    with pytest.raises(UsageError, match="finds nothing to keep in source"):
        plan_storage(llama, load_recipe("keep"))
