"""Recipes on a real float graph: what the written file holds must be what the recipe says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from converters.recipe import known_recipes, load_recipe
from converters.rule import Activations, Algorithm, Granularity, Rule
from converters.targets.litert_export import export_float
from converters.targets.litert_file import stored_weights
from converters.targets.litert_plan import is_planned
from converters.targets.litert_quantize import quantize_file, quantizer_recipe, refusal
from converters.targets.litert_run import LiteRtGraph
from tests.converters.tiny_checkpoints import VOCAB, save_hf, tiny_model

TOKEN_IDS = [(7 * i + 3) % VOCAB for i in range(100)]
# recipe -> (type of the weights, most bits a weight with the many scales and rotations of tiny rows, mean error of a logit)
STORED = {
    "fp32": ("float32", 32.0, 1e-6),
    "fp16": ("float16", 16.5, 2e-3),
    "int8": ("int8", 9.0, 0.05),
    "int8-hadamard": ("int8", 12.5, 0.05),
    "int4-g32": ("int4", 4.9, 0.5),
}


@pytest.fixture(scope="module")
def float_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("float")
    model = tiny_model("llama-tied", hidden_size=64, intermediate_size=128, head_dim=16, max_position_embeddings=512)
    return Path(export_float(str(save_hf(model, folder / "hf")), str(folder), [16], 128)["model"])


def n_parameters(path: Path) -> int:
    return sum(stored_weights(path).weights_by_type.values())


def test_there_is_an_expectation_for_every_recipe_the_quantizer_carries_out() -> None:
    """The others are written matrix by matrix: test_litert_plan.py."""
    assert set(STORED) == {name for name in known_recipes() if not is_planned(load_recipe(name))}


@pytest.mark.parametrize("name", sorted(STORED))
def test_a_recipe_stores_what_it_promises_and_still_answers(float_model: Path, tmp_path: Path, name: str) -> None:
    recipe = load_recipe(name)
    out = tmp_path / "model.tflite"
    rules = {str(kind): rule for kind, rule in recipe.rules.items()}
    quantize_file(str(float_model), quantizer_recipe(rules), str(out))
    kind, most_bits, tolerance = STORED[name]
    stored = stored_weights(out)
    share = stored.weights_by_type[kind] / n_parameters(float_model)
    assert 0.97 < share < 1.2, f"{name}: {stored.weights_by_type}"
    assert most_bits * 0.6 < stored.bits / n_parameters(float_model) <= most_bits
    wanted, got = (np.concatenate(list(LiteRtGraph(path).score(TOKEN_IDS))) for path in (float_model, out))
    error = float(np.abs(wanted - got).mean() / wanted.std())
    assert error < tolerance
    if name != "fp32":
        assert error > 0, "an error of zero means that the float file was written again"


def test_group_scales_are_counted(float_model: Path, tmp_path: Path) -> None:
    sizes = {}
    for name in ("int4-g32", "int8"):
        rules = {str(kind): rule for kind, rule in load_recipe(name).rules.items()}
        out = tmp_path / f"{name}.tflite"
        quantize_file(str(float_model), quantizer_recipe(rules), str(out))
        sizes[name] = stored_weights(out).bits / n_parameters(float_model)
    assert 4.4 < sizes["int4-g32"] < 5.5 < 8.0 < sizes["int8"] < 9.0


INT8 = load_recipe("int8").rules["linear"]  # type: ignore[index]
INT4 = load_recipe("int4-g32").rules["linear"]  # type: ignore[index]
REFUSED = {
    "a no-op that stays float": (replace(INT8, granularity=Granularity.BLOCKWISE, group_size=32), "silently stay float"),
    "fails at allocation": (replace(INT4, bits=2), "cannot allocate"),
    "affine": (replace(INT8, is_symmetric=False), "symmetric ones only"),
    "one scale for all": (replace(INT8, granularity=Granularity.TENSOR), "a channel or a group"),
    "an odd group": (replace(INT4, group_size=48), "only 4 bits in groups of 32"),
    "weight only": (replace(INT8, activations=Activations.FLOAT32), "five times slower"),
    "an algorithm of another target": (replace(INT8, algorithm=Algorithm.GPTQ), "gptq is not there"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_the_quantizer_gets_wrong_without_a_word_is_refused(case: str) -> None:
    rule, why = REFUSED[case]
    assert why in refusal(rule)


@pytest.mark.parametrize("name", sorted(STORED))
def test_no_recipe_that_ships_is_refused(name: str) -> None:
    assert [refusal(rule) for rule in load_recipe(name).rules.values()] == [""] * 3


def test_a_rotation_is_over_blocks_of_64_channels() -> None:
    entry = quantizer_recipe(dict.fromkeys(("embedding", "linear", "head"), replace(INT8, algorithm=Algorithm.HADAMARD)))[0]
    assert entry["op_config"]["weight_tensor_config"]["algorithm_params"] == {"max_hadamard_size": 64}


def test_a_head_with_a_rule_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[rules.head\] must equal \[rules.linear\]"):
        quantizer_recipe({"embedding": INT8, "linear": INT4, "head": INT8})


def test_an_embedding_of_its_own_overrides_the_general_rule() -> None:
    entries = quantizer_recipe({"embedding": INT8, "linear": INT4, "head": INT4})
    assert [(entry["operation"], entry["op_config"]["weight_tensor_config"]["num_bits"]) for entry in entries] == [
        ("*", 4),
        ("EMBEDDING_LOOKUP", 8),
    ]
    assert quantizer_recipe({kind: Rule(32, Algorithm.CAST) for kind in ("embedding", "linear", "head")}) == []
