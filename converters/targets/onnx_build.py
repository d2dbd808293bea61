"""The float graph of a model, by onnxruntime-genai's builder, without its weights.

The builder is handed a model whose matrices exist in shape only. So a graph costs seconds and half a GB whatever the
model's size, and each recipe writes its weights straight from the checkpoint. The rotary tables are transformers' own: the
builder knows neither a scaling that holds for one layer type alone nor Llama's linear one. Run in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

GRAPH_NAME = "graph.onnx"
ROPE_NAME = "rope.npz"
WEIGHTS_LOCATION = "weights"  # what initializers point to until a recipe has written them; no such file exists
BUILDERS = {  # model_type -> class of the builder
    "gemma": "GemmaModel",
    "gemma2": "Gemma2Model",
    "gemma3_text": "Gemma3Model",
    "llama": "LlamaModel",
    "qwen2": "QwenModel",
    "qwen3": "Qwen3Model",
}
OPTIONS: dict[str, Any] = {
    "fuse_qkv": False,  # one matrix of the graph is one tensor of the checkpoint, and may have a rule of its own
    "windowed_kv_cache": False,  # a cache cut to the window cannot be run by plain onnxruntime, nor with a context shorter than the window
    "hf_token": False,
}


def build_graph(config: dict[str, Any], n_positions: int, is_tied: bool, out_dir: str) -> dict[str, Any]:
    """Write `graph.onnx` (initializers have name, type and shape, no data) and `rope.npz`, the rotary tables.

    Args:
        config: A config.json as transformers reads it.
        n_positions: Rows of the rotary tables.
        is_tied: Whether the head is the embedding table.
        out_dir: Existing folder.

    Returns:
        {"graph": path}.
    """
    import onnx_ir as ir
    import torch
    from onnxruntime_genai.models import builder
    from transformers import AutoConfig, AutoModelForCausalLM

    place = Path(out_dir)
    settings = AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings).eval()
    _fill_vectors(model)
    kind = getattr(builder, BUILDERS[config["model_type"]])
    flattened = _flattened(AutoConfig.for_model(**config), config, n_positions)
    options = OPTIONS | {"shared_embeddings": is_tied}
    with torch.no_grad(), _no_place(place) as nowhere:
        made = kind(flattened, ir.DataType.FLOAT, ir.DataType.FLOAT, "cpu", str(nowhere), options)
        made.load_weights = lambda path: model
        made.make_model("")
    made.model.graph.sort()
    for name, value in made.model.graph.initializers.items():
        value.const_value = _declared(ir, name, value)
    ir.save(made.model, place / GRAPH_NAME)
    names = [name for name in made.model.graph.initializers if name.startswith(("cos_cache", "sin_cache"))]
    np.savez(place / ROPE_NAME, **_rotary_tables(model, settings, n_positions, names))
    return {"graph": str(place / GRAPH_NAME)}


def _flattened(settings: Any, config: dict[str, Any], n_positions: int) -> Any:
    """The config as the builder reads it: one plain RoPE, Gemma 3's second base at the top level. Its tables are not used."""
    settings.max_position_embeddings = n_positions
    settings.rope_theta = config["rope_theta"]
    settings.rope_local_base_freq = config.get("rope_local_base_freq", config["rope_theta"])
    settings.rope_parameters = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    return settings


def _rotary_tables(model: Any, settings: Any, n_positions: int, names: list[str]) -> dict[str, Any]:
    """cos and sin as transformers computes them: each (n_positions, head_dim / 2) float32.

    The graph's table `..._local` is that of sliding layers, `..._global` that of full ones; `cos_cache` alone serves all layers.
    """
    import torch

    rotary = type(model.model.rotary_emb)(settings)
    positions = torch.arange(n_positions)[None]
    tables: dict[str, Any] = {}
    for name in names:
        layer_type = {"local": "sliding_attention", "global": "full_attention"}.get(name.rpartition("_")[2])
        cos, sin = rotary(torch.zeros(1), positions, *([layer_type] if layer_type else []))
        table = cos if name.startswith("cos") else sin
        tables[name] = table[0, :, : table.shape[-1] // 2].to(torch.float32).numpy()
    return tables


def _fill_vectors(model: Any) -> None:
    """Give every vector a value: the builder leaves out a bias of zeros, and here none is known to be one."""
    import torch

    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.dim() < 2:
                ones = torch.nn.Parameter(torch.ones(parameter.shape, device="cpu"), requires_grad=False)
                setattr(module, name, ones)


def _declared(ir: Any, name: str, value: Any) -> Any:
    return ir.ExternalTensor(WEIGHTS_LOCATION, 0, value.const_value.nbytes, value.dtype, shape=value.shape, name=name, base_dir="")


@contextmanager
def _no_place(folder: Path) -> Iterator[Path]:
    """A cache folder the builder may look for and make, gone afterwards."""
    place = folder / "nothing"
    place.mkdir()
    try:
        yield place
    finally:
        place.rmdir()
