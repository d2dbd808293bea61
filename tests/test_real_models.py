"""The two real checkpoints, from the package index to an answer. Float exports are kept in the user's cache by content hash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from converters.cli import main as convert
from toolkit import Bundle, Engine
from toolkit.cache import CONFIG_VARIABLE
from toolkit.cli import main as toolkit
from toolkit.fetch import fetch

pytestmark = pytest.mark.real

RECIPES = ("fp32", "int8", "int4-g32")
MODELS = {"smollm2-135m-instruct": [], "gemma-3-270m": ["--accept-license", "gemma"]}
BITS_PER_WEIGHT = {"fp32": 32.0, "int8": 8.05, "int4-g32": 4.5}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OUT with three bundles of both models, converted by one command each."""
    folder = tmp_path_factory.mktemp("bundles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CONFIG_VARIABLE, str(tmp_path_factory.mktemp("config")))
        for model, flags in MODELS.items():
            assert convert([model, "--to", "litert", "--recipe", ",".join(RECIPES), "--out", str(folder), *flags]) == 0
    return folder


def manifest(out: Path, model: str, recipe: str) -> Any:
    return Bundle.open(out / f"{model}-litert-{recipe}").manifest


@pytest.mark.parametrize("model", MODELS)
def test_the_float_bundle_is_the_checkpoint(out: Path, model: str) -> None:
    fidelity = manifest(out, model, "fp32").fidelity
    assert fidelity.n_tokens >= 2000
    assert fidelity.max_abs_logit_error <= 1e-3
    assert fidelity.greedy_tokens_equal == 64
    assert fidelity.perplexity_ratio == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_int8_is_faithful_and_int4_says_how_far_it_is(out: Path, model: str) -> None:
    int8, int4 = (manifest(out, model, recipe).fidelity for recipe in ("int8", "int4-g32"))
    assert (int8.verdict, int4.verdict) == ("pass", "reported")
    assert 0.001 < int8.kl_mean <= 0.03
    assert int8.kl_mean < int4.kl_mean < 1.0
    assert int8.top1_agreement > int4.top1_agreement > 0.4


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_files_hold_the_bits_their_recipe_promises(out: Path, model: str, recipe: str) -> None:
    assert manifest(out, model, recipe).bits_per_weight == pytest.approx(BITS_PER_WEIGHT[recipe], rel=0.1)


def test_the_chat_bundle_answers_a_question(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = out / "smollm2-135m-instruct-litert-int8"
    assert toolkit(["run", str(bundle), "What is the capital of France?", "--max-tokens", "32", "--temperature", "0", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert "Paris" in answer["text"]
    assert answer["finish_reason"] == "stop"
    assert answer["metrics"]["decode_tokens_per_s"] > 0


def test_the_engine_goes_on_with_the_very_tokens_of_pytorch(out: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from converters.read import read_checkpoint

    read_checkpoint(fetch("smollm2-135m-instruct").path).write_hf(tmp_path)
    tokenizer, model = AutoTokenizer.from_pretrained(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    question = "Describe a water pump in two sentences."
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False)
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
    greedy = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False)[0, ids.shape[1] :]
    with Engine.open(Bundle.open(out / "smollm2-135m-instruct-litert-fp32")) as engine:
        text = "".join(piece.text for piece in engine.session().send(question, max_tokens=30))
    assert text == tokenizer.decode(greedy, skip_special_tokens=True)


def test_gemma_carries_a_sentencepiece_model_and_no_invented_template(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gemma = manifest(out, "gemma-3-270m", "int4-g32")
    assert (gemma.tokenizer["kind"], gemma.chat, gemma.chat_template) == ("sentencepiece", False, None)
    assert gemma.tokenizer["verified_texts"] > 20
    assert gemma.license.accepted_at is not None
    bundle = out / "gemma-3-270m-litert-int8"
    assert toolkit(["run", str(bundle), "The capital of France is", "--max-tokens", "12", "--temperature", "0", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["text"].strip() and answer["finish_reason"] == "length"
    assert answer["metrics"]["n_generated_tokens"] == 12
    assert toolkit(["chat", str(bundle)]) == 2
    assert "without a chat template" in capsys.readouterr().err


def test_converting_again_does_no_work(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert convert(["smollm2-135m-instruct", "--recipe", "int8", "--out", str(out)]) == 0
    assert "is there already" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
