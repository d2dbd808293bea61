"""Each family, tiny and random, lowered for real: the written graph must answer like transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.targets.litert_export import SCORE_LENGTH, export_float
from converters.targets.litert_run import LiteRtGraph
from tests.converters.tiny_checkpoints import VOCAB, save_hf, tiny_model

FAMILIES = ("llama-3.2", "qwen2", "qwen3", "gemma", "gemma2", "gemma3")
TOKEN_IDS = [(7 * i * i + 3 * i) % VOCAB for i in range(150)]  # longer than a chunk and than any sliding window
TOLERANCE = 1e-4  # litert-torch's own bound on float32 logits


@pytest.fixture(scope="module", params=FAMILIES)
def lowered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any, Path]]:
    """(family, transformers model, .tflite)."""
    folder = tmp_path_factory.mktemp(request.param)
    model = tiny_model(request.param, max_position_embeddings=512)
    (folder / "out").mkdir()
    done = export_float(str(save_hf(model, folder / "hf")), str(folder / "out"), [16], 256)
    yield request.param, model, Path(done["model"])


def expected_logits(model: Any) -> np.ndarray:
    import torch

    with torch.inference_mode():
        result: np.ndarray = model(torch.tensor([TOKEN_IDS])).logits[0].numpy()
    return result


def test_a_lowered_model_scores_every_position_like_its_checkpoint(lowered: tuple[str, Any, Path]) -> None:
    family, model, path = lowered
    blocks = list(LiteRtGraph(path).score(TOKEN_IDS))
    assert [len(block) for block in blocks] == [SCORE_LENGTH, len(TOKEN_IDS) - SCORE_LENGTH]
    wanted = expected_logits(model)
    assert np.abs(np.concatenate(blocks) - wanted).max() < TOLERANCE, family
    assert np.abs(np.concatenate(blocks) - expected_logits(tiny_model(family, rms_norm_eps=0.05))).max() > 10 * TOLERANCE


def test_one_decode_step_at_a_time_goes_on_like_the_checkpoint(lowered: tuple[str, Any, Path]) -> None:
    import torch

    _, model, path = lowered
    prompt = torch.tensor([TOKEN_IDS[:20]])
    everything = torch.ones_like(prompt)  # the pad token stands in the prompt as a token like any other
    answer = model.generate(prompt, attention_mask=everything, max_new_tokens=24, do_sample=False, eos_token_id=None)
    greedy = answer[0, 20:].tolist()
    graph = LiteRtGraph(path)
    assert graph.count_greedy_equal(TOKEN_IDS[:20], greedy) == 24
    broken = greedy[:9] + [(greedy[9] + 1) % VOCAB] + greedy[10:]
    assert graph.count_greedy_equal(TOKEN_IDS[:20], broken) == 9


def test_a_second_window_starts_from_an_empty_cache(lowered: tuple[str, Any, Path]) -> None:
    _, _, path = lowered
    graph = LiteRtGraph(path)
    first = np.concatenate(list(graph.score(TOKEN_IDS)))
    list(graph.score(TOKEN_IDS[::-1]))
    assert np.array_equal(first, np.concatenate(list(graph.score(TOKEN_IDS))))


def test_a_window_longer_than_the_cache_is_refused(lowered: tuple[str, Any, Path]) -> None:
    _, _, path = lowered
    graph = LiteRtGraph(path)
    with pytest.raises(ValueError, match=f"cache of {graph.cache_length}"):
        list(graph.score([1] * (graph.cache_length + 1)))
