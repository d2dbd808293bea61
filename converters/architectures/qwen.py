"""Qwen family: Qwen 2, 2.5 (biases on q, k, v) and Qwen 3 (no biases, normalized queries and keys), dense models only.

GGUF stores q and k as Hugging Face does: llama.cpp rotates halves for this family, so nothing is permuted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from converters.architectures.base import FloatArray, GgufView
from converters.architectures.config_dims import common_config, dims_from_config
from converters.architectures.decoder import tensor_table
from converters.architectures.fields import MAX_LAYERS, Fields
from converters.architectures.gguf_dims import architecture_fields, dims_from_gguf
from converters.architectures.layer_types import all_full, layer_types_from_config, layer_types_to_config
from converters.architectures.rope import rope_from_config, rope_from_gguf, rope_to_config
from converters.spec import LayerType, ModelSpec, NormSpec

MODEL_TYPES = ("qwen2", "qwen3")
GGUF_ARCHITECTURES = ("qwen2", "qwen3")
_ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_DEFAULT_THETA = 10000.0


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Read config.json. Layers from `max_window_layers` on slide, but only if `use_sliding_window` says so."""
    fields = Fields(config, "config.json")
    model_type = fields.text("model_type")
    is_qwen3 = model_type == "qwen3"
    dims = dims_from_config(fields, tie_default=False, head_dim_default=128 if is_qwen3 else None)
    window, first_sliding = None, dims["n_layers"]
    if fields.boolean("use_sliding_window", default=False):
        window = fields.optional_integer("sliding_window", minimum=1)
        first_sliding = fields.integer("max_window_layers", minimum=0, maximum=MAX_LAYERS, default=28) if window else first_sliding
    by_rule: tuple[LayerType, ...] = tuple("sliding" if i >= first_sliding else "full" for i in range(dims["n_layers"]))
    layer_types = layer_types_from_config(fields, by_rule) if window else by_rule
    return ModelSpec(
        model_type=model_type,
        architecture=_ARCHITECTURES[model_type],
        layer_types=layer_types,
        sliding_window=window if "sliding" in layer_types else None,
        rope=rope_from_config(fields, layer_types, {"full": _DEFAULT_THETA}),
        norm=NormSpec(fields.number("rms_norm_eps", default=1e-6), has_qk_norm=is_qwen3),
        activation=fields.activation("hidden_act", default="silu"),
        has_attention_bias=fields.boolean("attention_bias", default=False) if is_qwen3 else True,
        **dims,
    )


def spec_from_gguf(gguf: GgufView) -> ModelSpec:
    """Read a GGUF of architecture `qwen2` or `qwen3`; llama.cpp runs both with full attention in every layer."""
    dims, fields = dims_from_gguf(gguf), architecture_fields(gguf)
    model_type = str(gguf.metadata["general.architecture"])
    return ModelSpec(
        model_type=model_type,
        architecture=_ARCHITECTURES[model_type],
        layer_types=all_full(dims["n_layers"]),
        rope={"full": rope_from_gguf(gguf, fields, dims["head_dim"], _DEFAULT_THETA)},
        norm=NormSpec(fields.number("attention.layer_norm_rms_epsilon"), has_qk_norm=model_type == "qwen3"),
        activation="silu",
        has_attention_bias=model_type == "qwen2" or gguf.shape("blk.0.attn_q.bias") is not None,
        **dims,
    )


def config_from_spec(spec: ModelSpec) -> dict[str, Any]:
    """config.json for this spec."""
    slides = spec.sliding_window is not None
    config = common_config(spec) | {
        "hidden_act": spec.activation,
        "use_sliding_window": slides,
        "sliding_window": spec.sliding_window,
        "max_window_layers": spec.layer_types.index("sliding") if slides else spec.n_layers,
        "layer_types": layer_types_to_config(spec.layer_types),
        **rope_to_config(spec.rope, by_layer_type=False),
    }
    return config | ({"attention_bias": spec.has_attention_bias} if spec.model_type == "qwen3" else {})


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Hugging Face name to shape."""
    return {hf: shape for _, hf, shape in _table(spec)}


def gguf_names(spec: ModelSpec) -> dict[str, str]:
    """GGUF name to Hugging Face name."""
    return {gguf: hf for gguf, hf, _ in _table(spec)}


def from_gguf(gguf_name: str, array: FloatArray, spec: ModelSpec) -> tuple[str, FloatArray]:
    """Rename only."""
    return gguf_names(spec)[gguf_name], array


def to_gguf(hf_name: str, array: FloatArray, spec: ModelSpec) -> FloatArray:
    """The same values."""
    return array


def _table(spec: ModelSpec) -> list[tuple[str, str, tuple[int, ...]]]:
    return tensor_table(spec, has_output_bias=spec.model_type == "qwen3")
