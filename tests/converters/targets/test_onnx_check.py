"""A graph that is not the checkpoint's must be noticed: each test changes one field of the spec under an unchanged graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from converters.spec import ModelSpec
from converters.targets.onnx_check import require_faithful, unsupported_activation
from converters.targets.onnx_folder import read_graph
from converters.targets.onnx_names import HEAD, hf_name, require_all_tensors
from tests.converters.targets.onnx_models import built, onnx_checkpoint
from toolkit.errors import UnsupportedModelError

Graphs = dict[str, tuple[ModelSpec, dict[str, tuple[int, ...]], Any]]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    """Family -> (spec, tensor shapes, graph)."""
    made: Graphs = {}
    for name in ("llama-bias", "gemma2", "gemma3"):
        folder: Path = tmp_path_factory.mktemp(name)
        _, checkpoint = onnx_checkpoint(name, folder / "source")
        graph = read_graph(built(checkpoint, folder / "graph")).graph
        made[name] = (checkpoint.spec, checkpoint.tensor_shapes(), graph)
    return made


@pytest.mark.parametrize("name", ["llama-bias", "gemma2", "gemma3"])
def test_the_builders_graph_is_the_checkpoints(graphs: Graphs, name: str) -> None:
    spec, shapes, graph = graphs[name]
    require_faithful(graph, spec)
    require_all_tensors(graph, spec, shapes)


MUTANTS: dict[str, tuple[str, Callable[[ModelSpec], ModelSpec]]] = {
    "scale": ("gemma3", lambda spec: replace(spec, query_pre_attn_scalar=12.0)),
    "softcap": ("gemma2", lambda spec: replace(spec, attn_logit_softcap=3.0)),
    "final softcap": ("gemma2", lambda spec: replace(spec, final_logit_softcap=None)),
    "local_window_size": ("gemma3", lambda spec: replace(spec, layer_types=("full", *spec.layer_types[1:]))),
    "final softcap: /lm_head/softcap/Div takes": ("gemma2", lambda spec: replace(spec, final_logit_softcap=7.0)),
    "embedding scale is None": ("gemma2", lambda spec: replace(spec, embedding_scale=None)),
    "embedding scale is 9.5, the graph does not multiply": ("llama-bias", lambda spec: replace(spec, embedding_scale=9.5)),
    "norms in the graph": ("gemma3", lambda spec: replace(spec, norm=replace(spec.norm, has_qk_norm=False))),
    "norms in the graph and 17": ("llama-bias", lambda spec: replace(spec, norm=replace(spec.norm, has_post_norms=True))),
    "epsilon": ("llama-bias", lambda spec: replace(spec, norm=replace(spec.norm, eps=1e-3))),
    "kv_num_heads": ("llama-bias", lambda spec: replace(spec, n_kv_heads=3)),
    "attention nodes": ("llama-bias", lambda spec: replace(spec, n_layers=5, layer_types=(*spec.layer_types, "full"))),
    "Gelu nodes": ("llama-bias", lambda spec: replace(spec, activation="gelu_pytorch_tanh")),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_field_the_graph_computes_with_is_compared(graphs: Graphs, mutant: str) -> None:
    name, mutate = MUTANTS[mutant]
    spec, _, graph = graphs[name]
    with pytest.raises(UnsupportedModelError, match="would compute this checkpoint wrongly") as caught:
        require_faithful(graph, mutate(spec))
    assert mutant in caught.value.why
    assert caught.value.fix == "use another target: --to gguf, litert or mlx"


def test_a_tensor_too_many_or_too_few_or_of_another_shape_is_named(graphs: Graphs) -> None:
    spec, shapes, graph = graphs["llama-bias"]
    bias = "model.layers.0.self_attn.o_proj.bias"
    for changed in (
        {name: shape for name, shape in shapes.items() if name != bias},
        shapes | {bias: (97,)},
        shapes | {"model.layers.0.self_attn.o_proj.bias2": (96,)},
    ):
        with pytest.raises(UnsupportedModelError, match="does not understand this checkpoint") as caught:
            require_all_tensors(graph, spec, changed)
        assert bias in caught.value.why


def test_a_tied_head_stands_for_the_embedding(graphs: Graphs) -> None:
    spec = graphs["llama-bias"][0]
    assert hf_name("lm_head.MatMul.weight", spec) == HEAD
    assert hf_name("lm_head.MatMul.weight", replace(spec, tie_embeddings=True)) == "model.embed_tokens.weight"


def test_an_activation_that_is_not_proven_is_refused_by_name(graphs: Graphs) -> None:
    spec = graphs["llama-bias"][0]
    assert unsupported_activation(spec) == ""
    assert "relu" in unsupported_activation(replace(spec, activation="relu"))
