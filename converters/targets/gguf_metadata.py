"""A model's dimensions and arithmetic as the metadata llama.cpp reads, and what llama.cpp would compute differently."""

from __future__ import annotations

from typing import Any

from converters.architectures.layer_types import sliding_pattern
from converters.checkpoint import Checkpoint
from converters.spec import ModelSpec
from converters.targets import other_targets
from toolkit.errors import UnsupportedModelError

ARCHITECTURES = {"gemma": "gemma", "gemma2": "gemma2", "gemma3_text": "gemma3", "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_WINDOWED = ("gemma2", "gemma3_text")
# llama.cpp knows the two models that scale scores by hidden_size / heads by their number of layers.
_LAYERS_OF_27B = {"gemma2": 46, "gemma3_text": 62}
_QUANTIZATION_VERSION = 2


def general_metadata(checkpoint: Checkpoint, file_type: int) -> dict[str, Any]:
    """The `general.` keys: what the file is, and under which licence."""
    metadata: dict[str, Any] = {
        "general.architecture": ARCHITECTURES[checkpoint.spec.model_type],
        "general.type": "model",
        "general.name": checkpoint.name,
        "general.quantization_version": _QUANTIZATION_VERSION,
        "general.file_type": file_type,
    }
    if checkpoint.license.id != "unknown":
        metadata["general.license"] = checkpoint.license.id.lower()
    if checkpoint.license.url:
        metadata["general.license.link"] = checkpoint.license.url
    return metadata


def model_metadata(spec: ModelSpec) -> dict[str, Any]:
    """The architecture's own keys. Python types decide GGUF's: int is uint32, float is float32."""
    full = spec.rope.get("full") or next(iter(spec.rope.values()))
    keys: dict[str, Any] = {
        "vocab_size": spec.vocab_size,
        "context_length": spec.max_context_length,
        "embedding_length": spec.hidden_size,
        "block_count": spec.n_layers,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.n_heads,
        "attention.head_count_kv": spec.n_kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "attention.layer_norm_rms_epsilon": float(spec.norm.eps),
        "rope.dimension_count": spec.head_dim,
        "rope.freq_base": float(full.theta),
    }
    if full.scaling is not None and full.scaling["rope_type"] == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(full.scaling["factor"])}
    if spec.model_type in _WINDOWED:
        keys |= _window(spec)
    caps = {"attn_logit_softcapping": spec.attn_logit_softcap, "final_logit_softcapping": spec.final_logit_softcap}
    keys |= {name: float(cap) for name, cap in caps.items() if cap is not None}
    return {f"{ARCHITECTURES[spec.model_type]}.{name}": value for name, value in keys.items()}


def _window(spec: ModelSpec) -> dict[str, Any]:
    """The window, which layers have one (a period where there is one, else a truth value a layer) and their own RoPE base."""
    n_layers = len(spec.layer_types)
    period = next((n for n in range(1, n_layers + 2) if sliding_pattern(n_layers, n) == spec.layer_types), None)
    pattern: int | list[bool] = [layer_type == "sliding" for layer_type in spec.layer_types] if period is None else period
    keys: dict[str, Any] = {"attention.sliding_window_pattern": pattern}
    if spec.sliding_window is not None:
        keys["attention.sliding_window"] = spec.sliding_window
    if spec.model_type == "gemma3_text" and "sliding" in spec.rope:
        keys["rope.freq_base_swa"] = float(spec.rope["sliding"].theta)
    return keys


def refuse_unsupported(checkpoint: Checkpoint) -> None:
    """Refuse a model that llama.cpp would load and compute differently, or not load at all.

    Raises:
        UnsupportedModelError: Names the field and what llama.cpp assumes.
    """
    spec = checkpoint.spec
    elsewhere = other_targets("gguf", spec.model_type)
    if spec.model_type not in ARCHITECTURES:
        why = f"its model_type is {spec.model_type}; written and checked are {', '.join(ARCHITECTURES)}"
        raise UnsupportedModelError(f"{checkpoint.name} cannot be written as GGUF", why=why, fix=elsewhere)
    for is_fine, why in _assumptions(spec):
        if not is_fine:
            what = f"{checkpoint.name} cannot be written as GGUF: llama.cpp would compute another model"
            raise UnsupportedModelError(what, why=why, fix=elsewhere)


def _assumptions(spec: ModelSpec) -> list[tuple[bool, str]]:
    kind, is_gemma = spec.model_type, spec.model_type.startswith("gemma")
    is_27b = spec.n_layers == _LAYERS_OF_27B.get(kind)
    scalar = spec.hidden_size / spec.n_heads if is_27b else float(spec.head_dim)
    stated = float(spec.head_dim) if spec.query_pre_attn_scalar is None else spec.query_pre_attn_scalar
    activations = ("gelu_pytorch_tanh",) if is_gemma else ("silu", "swish")
    return [
        (spec.activation in activations, f"activation {spec.activation}; llama.cpp's {kind} has {activations[0]}"),
        (stated == scalar, f"query_pre_attn_scalar {stated:g}; llama.cpp takes {scalar:g} for a {kind} of {spec.n_layers} layers"),
        (kind not in ("gemma", "gemma2") or spec.tie_embeddings, f"a {kind} with an output layer of its own; llama.cpp ties it"),
        (kind in ("llama", "qwen2") or not spec.has_attention_bias, f"a {kind} with attention biases; llama.cpp has none for the output"),
        (kind in _WINDOWED or "sliding" not in spec.layer_types, f"a {kind} with sliding windows; llama.cpp attends to everything"),
        (
            kind != "qwen2" or spec.n_heads * spec.head_dim == spec.hidden_size,
            f"{spec.n_heads} heads of {spec.head_dim} beside hidden_size {spec.hidden_size}; llama.cpp's qwen2 has them equal",
        ),
        (
            kind != "gemma2" or None not in (spec.attn_logit_softcap, spec.final_logit_softcap),
            "a gemma2 without softcaps; llama.cpp always caps its scores and logits",
        ),
        (kind == "gemma2" or spec.attn_logit_softcap is None, f"a {kind} with a softcap on scores; llama.cpp has none there"),
        *_rope_assumptions(spec),
    ]


def _rope_assumptions(spec: ModelSpec) -> list[tuple[bool, str]]:
    kind = spec.model_type
    full = spec.rope.get("full") or next(iter(spec.rope.values()))
    sliding = spec.rope.get("sliding", full)
    scaling = "none" if full.scaling is None else str(full.scaling["rope_type"])
    known = ("none", "linear", "llama3") if kind == "llama" else ("none", "linear")
    is_local_plain = sliding.scaling is None if kind == "gemma3_text" and "sliding" in spec.rope else sliding == full
    return [
        (scaling in known, f"RoPE scaling {scaling} for {kind}; written for it are {', '.join(known)}"),
        (is_local_plain, f"RoPE of sliding layers {sliding}; llama.cpp's {kind} cannot scale it apart from the full layers'"),
    ]
