"""Gemma 3n and Gemma 4 as mlx_lm has them: what it computes otherwise, and how it names and shapes Gemma 3n.

mlx_lm has Gemma 3n only as the text part of a multimodal model, and makes key and value projections for layers that never
use them: those are written as zeros. Read from, and tested on tiny models against, mlx-lm 0.32.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from converters.targets.mlx_support import Refusal

if TYPE_CHECKING:
    from converters.architectures.base import FloatArray
    from converters.checkpoint import Checkpoint, TensorSource
    from converters.spec import ModelSpec
    from converters.stored_blocks import StoredBlocks

GEMMA3N, GEMMA4 = "gemma3n_text", "gemma4_text"
MODEL_TYPES = (GEMMA3N, GEMMA4)
# mlx_lm clips and multiplies these itself, in float32, so they can be neither quantized nor replaced.
MIXING = ("prediction_coefs", "correction_coefs")
_ACTIVATION = "gelu_pytorch_tanh"
_OTHER_TARGET = "use another target: --to litert"


def refusal(checkpoint: Checkpoint) -> Refusal | None:
    """Why mlx_lm would compute another model; None if it computes what the spec says. Reads Gemma 3n's mixing matrices."""
    spec = checkpoint.spec
    why = f"always takes {_ACTIVATION}, the checkpoint takes {spec.activation}" if spec.activation != _ACTIVATION else ""
    why = why or (_other_gemma3n(checkpoint) if spec.model_type == GEMMA3N else _other_gemma4(spec))
    return Refusal(f"mlx_lm's {spec.model_type.removesuffix('_text')} {why}", _OTHER_TARGET) if why else None


def _other_gemma3n(checkpoint: Checkpoint) -> str:
    spec = checkpoint.spec
    assert spec.altup is not None
    if not spec.tie_embeddings:
        return "always ties the output layer to the embeddings, the checkpoint does not"
    scaled = next((kind for kind, rope in spec.rope.items() if rope.scaling is not None), None)
    if scaled is not None:
        return f"does not scale RoPE, the checkpoint does in {scaled} layers"
    if set(spec.layer_types[: spec.n_kv_layers]) != {"full", "sliding"}:
        return "needs full and sliding layers among those that keep keys and values"
    for name in checkpoint.tensors.names():
        if name.endswith(tuple(f"{part}.weight" for part in MIXING)):
            largest = float(np.abs(checkpoint.tensors.load(name)).max())
            if largest > spec.altup.coef_clip:
                return f"clips mixing coefficients to altup_coef_clip {spec.altup.coef_clip:g}, {name} holds {largest:g}"
    return ""


def _other_gemma4(spec: ModelSpec) -> str:
    scaling, width = spec.rope["full"].scaling, spec.full_head_dim or spec.head_dim
    part = 1.0 if scaling is None else float(scaling["partial_rotary_factor"])
    if int(width * part) != 2 * int(part * width // 2):
        return f"rotates {int(width * part)} of {width} elements, an odd number, the checkpoint one less"
    return ""


def as_mlx_lm_has_it(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with zeros for what mlx_lm's Gemma 3n has and never reads; any other checkpoint as it is."""
    if checkpoint.spec.model_type != GEMMA3N:
        return checkpoint
    spec = checkpoint.spec
    keys = spec.n_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {}
    for layer_index in range(spec.n_kv_layers, spec.n_layers):
        prefix = f"model.layers.{layer_index}.self_attn."
        shapes |= {f"{prefix}{part}.weight": (keys, spec.hidden_size) for part in ("k_proj", "v_proj")}
        shapes[f"{prefix}k_norm.weight"] = (spec.head_dim,)
    return replace(checkpoint, tensors=WithZeros(checkpoint.tensors, shapes))


class WithZeros:
    """A TensorSource, and zeros of given shapes after it."""

    def __init__(self, inner: TensorSource, shapes: dict[str, tuple[int, ...]]) -> None:
        self._inner, self._shapes = inner, shapes

    def names(self) -> tuple[str, ...]:
        return (*self._inner.names(), *self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name] if name in self._shapes else self._inner.shape(name)

    def load(self, name: str) -> FloatArray:
        return np.zeros(self._shapes[name], np.float32) if name in self._shapes else self._inner.load(name)

    def blocks(self, name: str) -> Iterator[FloatArray]:
        return iter([self.load(name)]) if name in self._shapes else self._inner.blocks(name)

    def stored_kind(self, name: str) -> str | None:
        return None if name in self._shapes else self._inner.stored_kind(name)

    def stored(self, name: str) -> StoredBlocks | None:
        return None if name in self._shapes else self._inner.stored(name)


class UnderOtherNames:
    """A TensorSource whose tensors are called as mlx_lm's module of the family calls them."""

    def __init__(self, inner: TensorSource, model_type: str) -> None:
        self._inner = inner
        self._own = {mlx_name(name, model_type): name for name in inner.names()}

    def names(self) -> tuple[str, ...]:
        return tuple(self._own)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._inner.shape(self._own[name])

    def load(self, name: str) -> FloatArray:
        return self._inner.load(self._own[name])

    def blocks(self, name: str) -> Iterator[FloatArray]:
        return self._inner.blocks(self._own[name])

    def stored_kind(self, name: str) -> str | None:
        return self._inner.stored_kind(self._own[name])

    def stored(self, name: str) -> StoredBlocks | None:
        return self._inner.stored(self._own[name])


def mlx_name(name: str, model_type: str) -> str:
    """A tensor's name in mlx_lm's module: Gemma 3n's text model is a part of a multimodal one."""
    return f"model.language_model.{name.removeprefix('model.')}" if model_type == GEMMA3N else name


def wrapped_config(config: dict[str, Any]) -> dict[str, Any]:
    """Gemma 3n's config.json as mlx_lm reads it: the text model's keys in `text_config`."""
    if config["model_type"] != GEMMA3N:
        return config
    shared = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype")}
    return {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n", **shared, "text_config": config}
