"""The cast to float16 is ai-edge-quantizer's, value for value and answer for answer, without its minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.recipe import load_recipe
from converters.targets import litert_float16
from converters.targets.litert_export import export_float
from converters.targets.litert_float16 import cast_to_float16
from converters.targets.litert_model_file import ModelFile
from converters.targets.litert_quantize import quantize_file, quantizer_recipe
from converters.targets.litert_run import LiteRtGraph
from tests.converters.tiny_checkpoints import VOCAB, save_hf, tiny_model
from toolkit.errors import ToolkitError

TOKEN_IDS = [(7 * i + 3) % VOCAB for i in range(100)]
FLOAT16, FLOAT32 = 1, 0


@pytest.fixture(scope="module", params=["llama-tied", "qwen2"])
def float_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied and an untied model: in the first, one table serves the lookup and the head."""
    folder = tmp_path_factory.mktemp("float")
    model = tiny_model(request.param, hidden_size=64, intermediate_size=128, head_dim=16, max_position_embeddings=512)
    return Path(export_float(str(save_hf(model, folder / "hf")), str(folder), [16], 128)["model"])


@pytest.fixture(scope="module")
def by_quantizer(float_model: Path) -> Path:
    from ai_edge_quantizer import quantizer

    out = float_model.with_name("theirs.tflite")
    run = quantizer.Quantizer(str(float_model))
    run.load_quantization_recipe(quantizer_recipe({str(kind): rule for kind, rule in load_recipe("fp16").rules.items()}))
    run.quantize().export_model(str(out), overwrite=True)
    return out


def weights(path: Path) -> list[dict[str, Any]]:
    """For each graph, the float16 constants by name."""
    file = ModelFile.open(path)
    return [
        {str(tensor.name): file.constant(tensor.buffer).view(np.float16) for tensor in graph.tensors if tensor.type == FLOAT16}
        for graph in file.model.subgraphs
    ]


def test_every_weight_of_every_graph_has_the_quantizers_value(float_model: Path, by_quantizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "ours.tflite"
    cast_to_float16(float_model, out)
    ours, theirs = weights(out), weights(by_quantizer)
    assert [set(graph) for graph in ours] == [set(graph) for graph in theirs]
    assert sum(len(graph) for graph in ours) > 40
    for mine, other in zip(ours, theirs, strict=True):
        for name, values in mine.items():
            np.testing.assert_array_equal(values, other[name], err_msg=name)
    assert out.stat().st_size <= by_quantizer.stat().st_size


def test_the_file_answers_exactly_as_the_quantizers(float_model: Path, by_quantizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "ours.tflite"
    cast_to_float16(float_model, out)
    ours, theirs, float32 = (np.concatenate(list(LiteRtGraph(path).score(TOKEN_IDS))) for path in (out, by_quantizer, float_model))
    np.testing.assert_array_equal(ours, theirs)
    assert 0 < np.abs(ours - float32).max() < 0.01 * np.abs(float32).max()


def test_the_recipe_takes_this_cast(float_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {str(kind): rule for kind, rule in load_recipe("fp16").rules.items()}
    quantize_file(str(float_model), quantizer_recipe(rules), str(tmp_path / "by_recipe.tflite"))
    cast_to_float16(float_model, tmp_path / "ours.tflite")
    assert (tmp_path / "by_recipe.tflite").read_bytes() == (tmp_path / "ours.tflite").read_bytes()


def test_a_wrong_cast_would_be_seen(float_model: Path, by_quantizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded_twice(content: Any, name: Any) -> Any:
        coarse = (content.view(np.uint32) & 0xFFFF0000).astype(np.uint32)
        return coarse.view(np.float32).astype(np.float16)

    monkeypatch.setattr(litert_float16, "_float16", rounded_twice)
    out = tmp_path / "mutant.tflite"
    cast_to_float16(float_model, out)
    name, values = next(iter(weights(out)[0].items()))
    assert not np.array_equal(values, weights(by_quantizer)[0][name])


def test_weights_beyond_float16_are_refused_not_made_infinite(float_model: Path, tmp_path: Path) -> None:
    file = ModelFile.open(float_model)
    graph = file.model.subgraphs[0]
    largest = max((tensor for tensor in graph.tensors if tensor.type == FLOAT32), key=lambda tensor: file.constant(tensor.buffer).size)
    values = file.constant(largest.buffer).view(np.float32).copy()
    values[5] = 7e4
    entry = file.model.buffers[largest.buffer]
    entry.data, entry.offset, entry.size = values.view(np.uint8), 0, 0
    file.write(tmp_path / "large.tflite")
    with pytest.raises(ToolkitError, match="do not fit in float16"):
        cast_to_float16(tmp_path / "large.tflite", tmp_path / "out.tflite")
    assert not (tmp_path / "out.tflite").exists()
