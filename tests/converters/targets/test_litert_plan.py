"""Recipes that LiteRT carries out matrix by matrix, on a tiny llama read from GGUF."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from converters.checkpoint import Checkpoint
from converters.child import run_in_child
from converters.read import read_checkpoint
from converters.recipe import RECIPES_DIR, Recipe, load_recipe
from converters.rule import TensorClass
from converters.targets.base import Workshop
from converters.targets.litert import TARGET
from converters.targets.litert_export import export_float
from converters.targets.litert_file import stored_weights
from converters.targets.litert_inject import written_matrices
from converters.targets.litert_plan import check, is_planned, kept, promise, refusal, scales_channels, write_plan
from converters.targets.litert_quantize import quantize_file, quantizer_recipe
from converters.targets.litert_run import LiteRtGraph
from tests.converters.tiny_checkpoints import VOCAB, tiny_model, write_gguf

SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "max_position_embeddings": 512}
UP = "model.layers.0.mlp.up_proj.weight"
KEEP = (RECIPES_DIR / "keep.toml").read_text()


def checkpoint_of(folder: Path, storage: str) -> Checkpoint:
    return read_checkpoint(write_gguf(tiny_model("llama-tied", **SIZES), folder / f"{storage}.gguf", storage=storage))


@pytest.fixture(scope="module")
def q4_1(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return checkpoint_of(tmp_path_factory.mktemp("source"), "Q4_1")


@pytest.fixture(scope="module")
def lowered(q4_1: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("float")
    q4_1.write_hf(folder / "hf")
    return Path(export_float(str(folder / "hf"), str(folder), [16], 128)["model"])


def recipe_of(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load_recipe(str(path))


def test_only_recipes_that_need_it_are_carried_out_matrix_by_matrix() -> None:
    assert is_planned(load_recipe("keep"))
    assert not any(is_planned(load_recipe(name)) for name in ("fp32", "int8", "int4-g32", "int8-hadamard"))


def test_kept_codes_are_in_the_file_and_the_file_answers_as_the_checkpoint(q4_1: Checkpoint, lowered: Path, tmp_path: Path) -> None:
    recipe, out = load_recipe("keep"), tmp_path / "keep.tflite"
    (tmp_path / "plan").mkdir()
    write_plan(q4_1, recipe, tmp_path / "plan")
    arguments = {"model": str(lowered), "plan": str(tmp_path / "plan"), "out": str(out)}
    done = run_in_child("converters.targets.litert_inject:inject", arguments, what="write keep")
    assert done["n_replaced"] == 3 * (4 * 7 + 2) - 6, "a prefill has no head, and of its last layer only keys and values"
    names = [name for name, _, _ in written_matrices(out)]
    assert names.count(UP) == names.count(f"{UP}_offsets") == 3, "prefill, score and decode"
    stored = q4_1.tensors.stored(UP)
    assert stored is not None
    codes = next(codes for name, codes, _ in written_matrices(out) if name == UP)
    assert np.array_equal(codes, stored.codes.astype(np.int8) - 8)
    token_ids = [(7 * i + 3) % VOCAB for i in range(100)]
    wanted, got = (np.concatenate(list(LiteRtGraph(path).score(token_ids))) for path in (lowered, out))
    error = float(np.abs(wanted - got).mean() / wanted.std())
    assert 0 < error < 0.05
    assert stored_weights(out).bits / q4_1.spec.n_parameters == pytest.approx(promise(q4_1, recipe), rel=0.03)


def test_the_promise_of_keep_equals_a_count_by_hand(q4_1: Checkpoint) -> None:
    bits = 0
    for name, shape in q4_1.tensor_shapes().items():
        rows, size = shape[0], math.prod(shape)
        if name.endswith("embed_tokens.weight"):
            bits += 8 * size + 32 * rows
        elif len(shape) == 2:
            bits += 4 * size + size // 32 * (16 + 8) + 32 * rows
        else:
            bits += 32 * size
    assert promise(q4_1, load_recipe("keep")) == pytest.approx(bits / q4_1.spec.n_parameters, rel=1e-12)


def test_the_manifest_says_what_was_kept_and_what_was_rounded(q4_1: Checkpoint) -> None:
    assert kept(q4_1, load_recipe("keep")) == {"exact": {"Q4_1": 28}, "rounded_to_int8": {"Q4_1": 1}}


def test_a_source_without_codes_that_litert_can_hold_is_refused(tmp_path: Path) -> None:
    keep = load_recipe("keep")
    assert check(checkpoint_of(tmp_path, "Q4_0"), keep) == ""
    assert "nothing could be kept" in check(checkpoint_of(tmp_path, "Q8_0"), keep)
    assert "this source has floats" in check(checkpoint_of(tmp_path, "F32"), keep)


INT8_RULE = 'bits = 8\nalgorithm = "round"\ngranularity = "channel"\nsymmetric = true\nactivations = "int8-dynamic"\n'


def test_an_override_that_names_no_tensor_is_refused(q4_1: Checkpoint, tmp_path: Path) -> None:
    text = KEEP.replace('"keep"', '"mixed-4.8bpw"', 1) + "\n[[overrides]]\ntensors = 'model\\.layers\\.9\\..*'\n" + INT8_RULE
    assert "no tensor of" in check(q4_1, recipe_of(tmp_path, text))
    assert check(q4_1, recipe_of(tmp_path, text.replace("layers\\.9", "layers\\.1"))) == ""


def test_a_rule_that_cannot_be_carried_out_names_the_tensor(q4_1: Checkpoint, tmp_path: Path) -> None:
    text = KEEP.replace('"keep"', '"mixed-4.8bpw"', 1) + "\n[[overrides]]\ntensors = '.*\\.q_proj\\.weight'\n"
    for rule, why in (
        ('bits = 16\nalgorithm = "cast"\n', "16-bit floats beside integers"),
        (INT8_RULE.replace("channel", "tensor"), "one scale a row"),
        (INT8_RULE.replace("int8-dynamic", "float32"), "five times slower"),
        (INT8_RULE.replace("= 8", "= 4").replace('"channel"', '"blockwise"\ngroup_size = 32'), "takes gptq"),
    ):
        said = check(q4_1, recipe_of(tmp_path, text + rule))
        assert said.startswith("model.layers.0.self_attn.q_proj.weight: ") and why in said


def test_a_table_takes_no_offsets(tmp_path: Path) -> None:
    int4 = (RECIPES_DIR / "int4-g32.toml").read_text().replace('"int4-g32"', '"int4-g32-gptq"').replace('"round"', '"gptq"')
    rule = recipe_of(tmp_path, int4.replace("symmetric = true", "symmetric = false")).rules[TensorClass.LINEAR]
    assert refusal(rule, TensorClass.LINEAR) == ""
    assert "can have no offsets" in refusal(rule, TensorClass.EMBEDDING)


def test_int8_scales_channels_for_gemma_and_for_nobody_else() -> None:
    int8 = load_recipe("int8")
    assert scales_channels(int8, "gemma3_text") and scales_channels(int8, "gemma")
    assert not scales_channels(int8, "llama")
    assert not any(scales_channels(load_recipe(name), "gemma3_text") for name in ("fp16", "int4-g32", "int8-hadamard", "keep"))


def test_codes_chosen_on_texts_are_written_and_answer_better_than_rounded_ones(q4_1: Checkpoint, lowered: Path, tmp_path: Path) -> None:
    hf, stage, out = tmp_path / "hf", tmp_path / "stage", tmp_path / "out"
    q4_1.write_hf(hf)
    stage.mkdir()
    out.mkdir()
    workshop = Workshop(hf_dir=lambda: hf, run_stage=lambda asked: asked.build(stage))
    recipe = load_recipe("int4-g32-gptq")
    chosen = TARGET.quantize(q4_1, lowered, recipe, out, workshop)
    assert stored_weights(chosen).bits / q4_1.spec.n_parameters == pytest.approx(promise(q4_1, recipe), rel=0.03)
    rounded = tmp_path / "rounded.tflite"
    rules = {str(kind): rule for kind, rule in load_recipe("int4-g32").rules.items()}
    quantize_file(str(lowered), quantizer_recipe(rules), str(rounded))
    token_ids = [(7 * i + 3) % VOCAB for i in range(100)]
    wanted, got, plain = (np.concatenate(list(LiteRtGraph(path).score(token_ids))) for path in (lowered, chosen, rounded))
    assert 0 < np.square(got - wanted).mean() < np.square(plain - wanted).mean()
