"""Gemma 3n and Gemma 4, tiny and random, lowered for real: the written graph must answer like transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.architectures import family_of
from converters.child import run_in_child
from converters.recipe import load_recipe
from converters.targets.litert_gemma3n import restore_cutoffs
from converters.targets.litert_gemmas import unmeasured
from converters.targets.litert_run import LiteRtGraph
from tests.converters.tiny_checkpoints import VOCAB, save_hf
from tests.converters.tiny_gemmas import CONFIGS, tiny_gemma

TOKEN_IDS = [(7 * i * i + 3 * i) % VOCAB for i in range(150)]  # longer than a chunk and than any sliding window
TOLERANCE = 1e-3


@pytest.fixture(scope="module", params=CONFIGS)
def lowered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any, Path]]:
    """(name, transformers model, .tflite), lowered in a process of its own, as convert does: nothing there was imported before."""
    folder = tmp_path_factory.mktemp(request.param)
    model = tiny_gemma(request.param)
    (folder / "out").mkdir()
    arguments = {"hf_dir": str(save_hf(model, folder / "hf")), "out_dir": str(folder / "out"), "prefill_lengths": [16]}
    done = run_in_child("converters.targets.litert_export:export_float", arguments | {"context_length": 256}, what="lower")
    yield request.param, model, Path(done["model"])


def expected(model: Any) -> np.ndarray:
    import torch

    with torch.inference_mode():
        result: np.ndarray = model(torch.tensor([TOKEN_IDS])).logits[0].numpy()
    return result


def test_a_lowered_model_scores_and_decodes_like_its_checkpoint(lowered: tuple[str, Any, Path]) -> None:
    import torch

    name, model, path = lowered
    graph, wanted = LiteRtGraph(path), expected(model)
    assert np.abs(np.concatenate(list(graph.score(TOKEN_IDS))) - wanted).max() < TOLERANCE
    assert np.abs(expected(tiny_gemma(name, sliding_window=6)) - wanted).max() > 10 * TOLERANCE, "another window would not show"
    prompt = torch.tensor([TOKEN_IDS[:20]])
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    greedy = model.generate(prompt, **options)[0, 20:].tolist()
    graph = LiteRtGraph(path)
    assert graph.count_greedy_equal(TOKEN_IDS[:20], greedy) == 24
    broken = greedy[:9] + [(greedy[9] + 1) % VOCAB] + greedy[10:]
    assert graph.count_greedy_equal(TOKEN_IDS[:20], broken) == 9


def test_layers_that_share_have_no_cache_of_their_own(lowered: tuple[str, Any, Path]) -> None:
    name, model, path = lowered
    n_kept = model.config.num_hidden_layers - model.config.num_kv_shared_layers
    assert len(LiteRtGraph(path)._kv_names) == 2 * n_kept
    assert n_kept == (6 if name == "gemma4-dense" else 4)


def test_a_cutoff_that_holds_whatever_lay_in_memory_is_worked_out_again() -> None:
    import torch

    sparse = torch.nn.Module()
    sparse.activation_sparsity = 0.95  # type: ignore[assignment]
    sparse.register_buffer("_std_multiplier", torch.tensor(1e28), persistent=False)
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2), sparse])
    restore_cutoffs(model)
    assert float(sparse._std_multiplier) == pytest.approx(1.644854, abs=1e-5)  # the normal distribution's 95 % point


@pytest.mark.parametrize(
    ("name", "recipe", "why"),
    [
        ("gemma4-dense", "fp32", "attention_k_eq_v"),
        ("gemma3n", "int8", "AltUp's mixing matrices"),
        ("gemma4", "int4-g32", "per-layer tables"),
        ("gemma3n", "fp32", ""),
        ("gemma4", "fp32", ""),
    ],
)
def test_what_was_not_held_against_transformers_is_refused_by_name(name: str, recipe: str, why: str) -> None:
    spec = family_of(CONFIGS[name]["model_type"]).spec_from_config(tiny_gemma(name).config.to_dict())
    refused = unmeasured(spec, [load_recipe(recipe)])
    assert (refused is None) == (not why)
    if refused is not None:
        assert why in refused.why and refused.fix.endswith("use another target: --to mlx")
