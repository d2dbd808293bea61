"""What mlx_lm computes for each model family, held against a spec: where the two differ, the model is refused.

mlx_lm reads a config key or passes it over without a word, so each line here names a key it would pass over. Read from, and
tested on tiny models against, mlx-lm 0.32.2.
"""

from __future__ import annotations

from typing import NamedTuple

from converters.architectures.layer_types import sliding_pattern
from converters.spec import ModelSpec


class Refusal(NamedTuple):
    """Why mlx_lm would run another model than the checkpoint, and what to do about it."""

    why: str
    fix: str


class Family(NamedTuple):
    """What mlx_lm's module of a `model_type` computes.

    Args:
        activation: The one it has; it reads no key. mlx_lm's Gemma 1 takes the exact GELU where others take its tanh form,
            which moves logits by some thousandths and is let pass.
        rope_scalings: Types of RoPE scaling it carries out.
        has_biases: Whether it has biases on q, k and v: always, never, or as `attention_bias` says (None).
        has_windows: Whether sliding layers slide.
        has_softcaps: Whether it caps attention scores and logits; then both caps must be there.
        reads_head_dim: Whether heads may be of another size than hidden_size / n_heads.
    """

    activation: str
    rope_scalings: tuple[str, ...] = ()
    has_biases: bool | None = False
    has_windows: bool = False
    has_softcaps: bool = False
    reads_head_dim: bool = True


_SCALINGS = ("linear", "llama3", "yarn")
_GELU = "gelu_pytorch_tanh"
FAMILIES: dict[str, Family] = {
    "gemma": Family(_GELU),
    "gemma2": Family(_GELU, has_softcaps=True),
    "gemma3_text": Family(_GELU, _SCALINGS, has_windows=True),
    "llama": Family("silu", _SCALINGS, has_biases=None),
    "qwen2": Family("silu", _SCALINGS, has_biases=True, reads_head_dim=False),
    "qwen3": Family("silu", _SCALINGS),
}
_OTHER_TARGET = "use another target: --to gguf or litert"


def refusal(spec: ModelSpec, context_length: int) -> Refusal | None:
    """Why a model cannot go to MLX; None if mlx_lm computes what the spec says, up to a context length."""
    family = FAMILIES.get(spec.model_type)
    if family is None:
        known = ", ".join((*FAMILIES, "gemma3n_text", "gemma4_text"))
        return Refusal(f"its model_type is {spec.model_type}; checked in mlx_lm are {known}", "use another target")
    why = _other_arithmetic(spec, family) or _other_rope(spec, family)
    if why:
        return Refusal(f"mlx_lm's {spec.model_type} {why}", _OTHER_TARGET)
    return _other_windows(spec, family, context_length)


def _other_arithmetic(spec: ModelSpec, family: Family) -> str:
    caps = (spec.attn_logit_softcap, spec.final_logit_softcap)
    if spec.activation != family.activation:
        return f"always takes {family.activation}, the checkpoint takes {spec.activation}"
    if family.has_biases is not None and spec.has_attention_bias != family.has_biases:
        return (
            f"{'needs' if family.has_biases else 'has no'} attention biases, the checkpoint has {'none' if family.has_biases else 'some'}"
        )
    if family.has_softcaps and None in caps:
        return "caps attention scores and logits, the checkpoint leaves one of them uncapped"
    if not family.has_softcaps and caps != (None, None):
        return "caps no scores and no logits, the checkpoint does"
    if not family.reads_head_dim and spec.head_dim * spec.n_heads != spec.hidden_size:
        return f"has heads of hidden_size / heads = {spec.hidden_size / spec.n_heads:g}, the checkpoint's are {spec.head_dim} wide"
    return ""


def _other_rope(spec: ModelSpec, family: Family) -> str:
    for layer_type, rope in spec.rope.items():
        if rope.scaling is None:
            continue
        kind = rope.scaling["rope_type"]
        if kind not in family.rope_scalings or (family.has_windows and layer_type == "sliding"):
            return f"does not scale RoPE in {layer_type} layers, the checkpoint has {kind} scaling there"
        if kind == "yarn" and "attention_factor" in rope.scaling:
            return "reads no attention_factor of yarn scaling, the checkpoint has one"
        if kind == "yarn" and ("mscale" in rope.scaling) != ("mscale_all_dim" in rope.scaling):
            return "takes mscale and mscale_all_dim of yarn scaling one by one, the checkpoint has only one of them"
        if kind == "yarn" and "original_max_position_embeddings" not in rope.scaling:
            return "needs original_max_position_embeddings for yarn scaling, the checkpoint has none"
    return ""


def _other_windows(spec: ModelSpec, family: Family, context_length: int) -> Refusal | None:
    if "sliding" not in spec.layer_types:
        return None
    window = spec.sliding_window or 0
    if not family.has_windows:
        why = f"mlx_lm's {spec.model_type} lets every layer see everything, the checkpoint's see {window} tokens: equal only that far"
        return Refusal(why, f"use --context {window}") if context_length > window else None
    # mlx_lm knows the pattern as one number, and looks up its mask in the first full layer.
    period = spec.layer_types.index("full") + 1 if "full" in spec.layer_types else 0
    if not period or spec.layer_types != sliding_pattern(spec.n_layers, period):
        why = f"mlx_lm's {spec.model_type} makes every n-th layer a full one, the checkpoint has {', '.join(spec.layer_types)}"
        return Refusal(why, _OTHER_TARGET)
    return None
