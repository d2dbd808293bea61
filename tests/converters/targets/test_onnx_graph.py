"""Each family, tiny and random, built and written for real: onnxruntime-genai must answer like transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.checkpoint import Checkpoint
from converters.targets.onnx_folder import read_graph, stored_weights
from converters.targets.onnx_run import CHUNK, OnnxModel
from tests.converters.targets.onnx_models import FAMILIES, TOKEN_IDS, built, expected_logits, greedy, onnx_checkpoint, onnx_model, written
from tests.converters.tiny_checkpoints import VOCAB

TOLERANCE = 1e-4  # ten times finer than the gate of fp32


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any, Checkpoint, Path]]:
    """(name, transformers model, checkpoint, float graph)."""
    folder = tmp_path_factory.mktemp(request.param)
    model, checkpoint = onnx_checkpoint(request.param, folder / "source")
    yield request.param, model, checkpoint, built(checkpoint, folder / "graph")


def scored(folder: Path) -> np.ndarray:
    return np.concatenate(list(OnnxModel(folder).score(TOKEN_IDS)))


def test_a_float_model_scores_every_position_like_its_checkpoint(family: tuple[str, Any, Checkpoint, Path], tmp_path: Path) -> None:
    name, model, checkpoint, graph = family
    opened = OnnxModel(written(checkpoint, graph, "fp32", tmp_path / "fp32"))
    blocks = list(opened.score(TOKEN_IDS))
    assert [len(block) for block in blocks] == [CHUNK, len(TOKEN_IDS) - CHUNK]
    wanted = expected_logits(model)
    assert np.abs(np.concatenate(blocks) - wanted).max() < TOLERANCE, name
    assert np.abs(np.concatenate(blocks) - expected_logits(onnx_model(name, rms_norm_eps=0.05))).max() > 10 * TOLERANCE
    assert np.array_equal(np.concatenate(blocks), np.concatenate(list(opened.score(TOKEN_IDS)))), "a second window starts from nothing"


def test_decode_steps_of_the_runtime_go_on_like_the_checkpoint(family: tuple[str, Any, Checkpoint, Path], tmp_path: Path) -> None:
    _, model, checkpoint, graph = family
    prompt = TOKEN_IDS[:20]
    tokens = greedy(model, prompt, 24)
    opened = OnnxModel(written(checkpoint, graph, "fp32", tmp_path / "fp32"))
    assert opened.count_greedy_equal(prompt, tokens) == 24
    assert opened.count_greedy_equal(prompt, [*tokens[:9], (tokens[9] + 1) % VOCAB, *tokens[10:]]) == 9


def test_fewer_bits_are_less_faithful_and_all_of_them_are_in_the_file(family: tuple[str, Any, Checkpoint, Path], tmp_path: Path) -> None:
    _, model, checkpoint, graph = family
    wanted, errors, bits = expected_logits(model), [], []
    for recipe in ("fp32", "fp16", "int8", "int4-g32"):
        folder = written(checkpoint, graph, recipe, tmp_path / recipe)
        errors.append(float(np.sqrt(np.mean((scored(folder) - wanted) ** 2))))
        bits.append(stored_weights(folder / "model.onnx").bits / checkpoint.spec.n_parameters)
    assert errors == sorted(errors)
    assert errors[1] > 2 * errors[0] and errors[2] > 2 * errors[1] and errors[3] > 2 * errors[2], "a recipe that did nothing"
    assert bits[0] == 32.0
    assert bits[1:] == pytest.approx([16, 8.5, 4.5], rel=0.1)


def test_the_scale_of_embeddings_is_the_checkpoints_to_all_its_digits(tmp_path: Path) -> None:
    import onnx

    _, checkpoint = onnx_checkpoint("gemma", tmp_path / "source")
    folder = written(checkpoint, built(checkpoint, tmp_path / "graph"), "fp32", tmp_path / "fp32")
    graph = read_graph(folder / "model.onnx").graph
    [scale] = [onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name == "embedding_scale"]
    assert scale == np.float32(96**0.5)
    assert "/model/constants/FLOAT/9.8" not in {name for node in graph.node for name in (*node.input, *node.output)}


def test_a_tied_table_is_stored_once_whatever_reads_it(tmp_path: Path) -> None:
    _, tied = onnx_checkpoint("llama-tied", tmp_path / "tied")
    _, untied = onnx_checkpoint("llama", tmp_path / "untied")
    table = 320 * 96
    assert untied.spec.n_parameters - tied.spec.n_parameters == table
    for checkpoint, place in ((tied, "a"), (untied, "b")):
        graph = built(checkpoint, tmp_path / f"graph-{place}")
        for recipe in ("fp32", "int8"):
            folder = written(checkpoint, graph, recipe, tmp_path / f"{recipe}-{place}")
            stored = stored_weights(folder / "model.onnx").bits / checkpoint.spec.n_parameters
            assert stored == pytest.approx(32 if recipe == "fp32" else 8.55, rel=0.02)
            assert (folder / "model.onnx.data").stat().st_size < stored / 8 * checkpoint.spec.n_parameters + 200_000
