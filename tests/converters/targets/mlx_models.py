"""Tiny checkpoints whose widths MLX's groups divide, and what the MLX target makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint import Checkpoint
from converters.read import read_checkpoint
from converters.recipe import Recipe, load_recipe
from converters.targets.base import Workshop
from converters.targets.mlx import TARGET
from tests.converters.tiny_checkpoints import save_hf, tiny_model, write_gguf

# sqrt(64) is exact in bfloat16: mlx_lm rounds Gemma 3's embedding scale to it, and nothing of that may blur a comparison.
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
QWEN2_SIZES = SIZES | {"head_dim": 16}
TOKEN_IDS = [int(token_id) for token_id in np.arange(24) * 11 % 320]


def wide_model(name: str, **changes: Any) -> Any:
    """A transformers model of a tiny config, widened."""
    return tiny_model(name, **((QWEN2_SIZES if name.startswith("qwen2") else SIZES) | changes))


def hf_checkpoint(folder: Path, name: str, **changes: Any) -> Checkpoint:
    return read_checkpoint(str(save_hf(wide_model(name, **changes), folder / "source")))


def gguf_checkpoint(folder: Path, name: str, storage: str, **changes: Any) -> Checkpoint:
    return read_checkpoint(str(write_gguf(wide_model(name, **changes), folder / "tiny.gguf", storage=storage)))


def written(checkpoint: Checkpoint, recipe: str | Recipe, folder: Path) -> Path:
    """The model folder that `quantize` leaves."""
    folder.mkdir(parents=True)
    chosen = load_recipe(recipe) if isinstance(recipe, str) else recipe
    return TARGET.quantize(checkpoint, folder / "unused", chosen, folder, Workshop())
