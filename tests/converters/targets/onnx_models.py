"""Tiny checkpoints for the ONNX target, and models written from them without the pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from converters.architectures import family_of
from converters.checkpoint import Checkpoint
from converters.read import read_checkpoint
from converters.recipe import Recipe, load_recipe
from converters.targets.onnx_build import ROPE_NAME, build_graph
from converters.targets.onnx_config import CONFIG_NAME, genai_config
from converters.targets.onnx_folder import read_graph
from converters.targets.onnx_graph import ModelWriter
from tests.converters.tiny_checkpoints import VOCAB, save_hf, tiny_model

FAMILIES = (
    "llama",
    "llama-bias",
    "llama-3.2",
    "llama-linear",
    "qwen2",
    "qwen2-sliding",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3-linear",
)
# Sizes that onnxruntime's groups of 32 divide; sqrt(96) = 9.797..., which the builder would round to 9.8.
SIZES = {"hidden_size": 96, "intermediate_size": 160, "head_dim": 16, "num_attention_heads": 6, "num_key_value_heads": 2}
N_POSITIONS = 256
TOKEN_IDS = [(7 * i * i + 3 * i) % VOCAB for i in range(150)]  # longer than a chunk and than any sliding window


def onnx_model(name: str, **changes: Any) -> Any:
    """A transformers model of `CONFIGS[name]` whose sizes this target takes."""
    sizes = {"max_position_embeddings": 512, "bos_token_id": 260, "eos_token_id": 261, "pad_token_id": 259} | SIZES
    return tiny_model(name, **(sizes | changes))


def onnx_source(model: Any, folder: Path, template: str | None = None) -> Path:
    """A Hugging Face directory of it; every entry of its tokenizer can be reached by merges, or the runtime finds more."""
    save_hf(model, folder)
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    data["model"]["merges"].append(["Ġ", "Ġ"])
    path.write_text(json.dumps(data))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return folder


def onnx_checkpoint(name: str, folder: Path, **changes: Any) -> tuple[Any, Checkpoint]:
    model = onnx_model(name, **changes)
    return model, read_checkpoint(onnx_source(model, folder))


def built(checkpoint: Checkpoint, folder: Path) -> Path:
    """The float graph without weights, in a folder with the rotary tables."""
    folder.mkdir()
    spec = checkpoint.spec
    config = family_of(spec.model_type).config_from_spec(spec) | {"dtype": "float32"}
    return Path(build_graph(config, N_POSITIONS, spec.tie_embeddings, str(folder))["graph"])


def written(checkpoint: Checkpoint, graph: Path, recipe: str | Recipe, folder: Path) -> Path:
    """A folder onnxruntime-genai opens."""
    folder.mkdir()
    rule_of = (load_recipe(recipe) if isinstance(recipe, str) else recipe).rule_for
    with np.load(graph.with_name(ROPE_NAME)) as tables:
        ModelWriter(read_graph(graph), checkpoint.spec, checkpoint.tensors, rule_of, dict(tables)).write(folder)
    (folder / CONFIG_NAME).write_text(json.dumps(genai_config(checkpoint.spec, N_POSITIONS)))
    return folder


def expected_logits(model: Any, token_ids: list[int] = TOKEN_IDS) -> np.ndarray:
    import torch

    with torch.inference_mode():
        result: np.ndarray = model(torch.tensor([token_ids])).logits[0].numpy()
    return result


def greedy(model: Any, prompt: list[int], n_tokens: int) -> list[int]:
    """What transformers goes on with."""
    import torch

    ids = torch.tensor([prompt])
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n_tokens, do_sample=False, eos_token_id=None)
    result: list[int] = answer[0, len(prompt) :].tolist()
    return result
