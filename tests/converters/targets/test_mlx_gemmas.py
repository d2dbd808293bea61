"""Gemma 3n and Gemma 4, tiny and random, written for MLX and run by mlx_lm itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.checkpoint import Checkpoint
from converters.quantize.affine import quantize_affine
from converters.read import read_checkpoint
from converters.recipe import load_recipe
from converters.targets import mlx_gemmas, mlx_run, mlx_storage
from converters.targets.base import ConvertOptions, Workshop
from converters.targets.mlx import MlxTarget
from tests.converters.tiny_checkpoints import VOCAB, save_hf
from tests.converters.tiny_gemmas import CONFIGS, tiny_gemma
from toolkit.errors import UnsupportedModelError

pytest.importorskip("mlx_lm", reason="pip install 'ondevice-toolkit[mlx]'")

TOKEN_IDS = [(7 * i * i + 3 * i) % VOCAB for i in range(150)]  # longer than a chunk and than any sliding window
TOLERANCE = 1e-3


@pytest.fixture(scope="module", params=CONFIGS)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any, Checkpoint]]:
    """(name, transformers model, checkpoint)."""
    model = tiny_gemma(request.param)
    yield request.param, model, read_checkpoint(save_hf(model, tmp_path_factory.mktemp(request.param) / "source"))


def expected(model: Any) -> np.ndarray:
    import torch

    with torch.inference_mode():
        result: np.ndarray = model(torch.tensor([TOKEN_IDS])).logits[0].numpy()
    return result


def opened(checkpoint: Checkpoint, recipe: str, workdir: Path) -> Any:
    workdir.mkdir(exist_ok=True)
    return mlx_run.MlxModel(MlxTarget().quantize(checkpoint, workdir, load_recipe(recipe), workdir, Workshop()))


def test_fp32_scores_every_position_and_decodes_like_transformers(source: tuple[str, Any, Checkpoint], tmp_path: Path) -> None:
    import torch

    name, model, checkpoint = source
    MlxTarget().check(checkpoint, [load_recipe("fp32")], ConvertOptions(context_length=256))
    native, wanted = opened(checkpoint, "fp32", tmp_path), expected(model)
    assert np.abs(np.concatenate(list(native.score(TOKEN_IDS))) - wanted).max() < TOLERANCE
    assert np.abs(expected(tiny_gemma(name, sliding_window=6)) - wanted).max() > 10 * TOLERANCE, "another window would not show"
    prompt = torch.tensor([TOKEN_IDS[:20]])
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    greedy = model.generate(prompt, **options)[0, 20:].tolist()
    assert native.count_greedy_equal(TOKEN_IDS[:20], greedy) == 24
    broken = greedy[:9] + [(greedy[9] + 1) % VOCAB] + greedy[10:]
    assert native.count_greedy_equal(TOKEN_IDS[:20], broken) == 9


def test_int8_computes_with_exactly_the_rounded_weights(
    source: tuple[str, Any, Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 activations, so that only the weights count: random models answer bfloat16 itself a third off."""
    import torch

    name, model, checkpoint = source
    monkeypatch.setattr(mlx_storage, "float_dtype", lambda spec, recipe: "float32")
    rounded, n_rounded = tiny_gemma(name), 0
    weights = rounded.state_dict()
    for tensor, storage in mlx_storage.plan_storage(checkpoint, load_recipe("int8")).items():
        if storage.bits is None or storage.group_size is None:
            continue
        packed = quantize_affine(checkpoint.tensors.load(tensor), bits=8, group_size=storage.group_size)
        codes = packed.packed.view(np.uint8).reshape(weights[tensor].shape).astype(np.float32)
        scales, biases = (np.repeat(array, storage.group_size, 1) for array in (packed.scales, packed.biases))
        weights[tensor].copy_(torch.from_numpy(codes * scales + biases))
        n_rounded += 1
    assert n_rounded > 6 * 6
    got = np.concatenate(list(opened(checkpoint, "int8", tmp_path).score(TOKEN_IDS)))
    assert np.abs(got - expected(rounded)).max() < TOLERANCE
    assert np.abs(got - expected(model)).max() > 10 * TOLERANCE, "unrounded weights would not show"


@pytest.fixture
def gemma3n(tmp_path: Path) -> Checkpoint:
    return read_checkpoint(save_hf(tiny_gemma("gemma3n"), tmp_path / "source"))


def test_layers_without_keys_get_zeros_where_mlx_lm_wants_keys(gemma3n: Checkpoint, tmp_path: Path) -> None:
    whole = mlx_gemmas.as_mlx_lm_has_it(gemma3n)
    added = set(whole.tensors.names()) - set(gemma3n.tensors.names())
    assert added == {f"model.layers.{i}.self_attn.{part}.weight" for i in (4, 5) for part in ("k_proj", "v_proj", "k_norm")}
    assert not any(whole.tensors.load(name).any() for name in added)
    folder = tmp_path / "q"
    folder.mkdir()
    model = MlxTarget().quantize(gemma3n, folder, load_recipe("fp32"), folder, Workshop())
    config = json.loads((model / "config.json").read_text("utf-8"))
    assert (config["model_type"], config["text_config"]["model_type"]) == ("gemma3n", "gemma3n_text")


REFUSED: dict[str, Any] = {
    "clips mixing coefficients": lambda spec: replace(spec, altup=replace(spec.altup, coef_clip=0.1)),
    "ties the output layer": lambda spec: replace(spec, tie_embeddings=False),
    "does not scale RoPE": lambda spec: replace(
        spec, rope={**spec.rope, "full": replace(spec.rope["full"], scaling={"rope_type": "linear", "factor": 2.0})}
    ),
    "needs full and sliding": lambda spec: replace(spec, layer_types=("full",) * 6),
    "always takes gelu_pytorch_tanh": lambda spec: replace(spec, activation="relu"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_mlx_lm_computes_otherwise_is_refused(why: str, gemma3n: Checkpoint) -> None:
    broken = replace(gemma3n, spec=REFUSED[why](gemma3n.spec))
    assert mlx_gemmas.refusal(gemma3n) is None
    with pytest.raises(UnsupportedModelError, match=f"mlx_lm's gemma3n .*{why}"):
        MlxTarget().check(broken, [load_recipe("fp32")], ConvertOptions(context_length=256))


def test_a_rotated_share_that_mlx_lm_rounds_otherwise_is_refused(tmp_path: Path) -> None:
    rope = {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.48, "rope_theta": 1e6}}
    rope["sliding_attention"] = {"rope_type": "default", "rope_theta": 1e4}
    checkpoint = read_checkpoint(save_hf(tiny_gemma("gemma4", rope_parameters=rope), tmp_path / "source"))
    refused = mlx_gemmas.refusal(checkpoint)
    assert refused is not None and "rotates 15 of 32 elements" in refused.why
