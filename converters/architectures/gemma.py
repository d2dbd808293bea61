"""Gemma family: Gemma 1, Gemma 2 and Gemma 3 (text).

What sets it apart: RMSNorm multiplies by 1 + weight, embeddings are scaled by sqrt(hidden_size), heads are 256 wide
whatever the hidden size, embeddings are always tied. Gemma 2 adds post-norms, logit softcaps and windows in every other
layer; Gemma 3 drops the softcaps, normalizes queries and keys, slides 5 layers of 6 and gives those a RoPE base of
their own. GGUF stores 1 + weight for every norm, and neither query_pre_attn_scalar nor (mostly) the window pattern.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.architectures.base import FloatArray, GgufView
from converters.architectures.config_dims import common_config, dims_from_config
from converters.architectures.decoder import tensor_table
from converters.architectures.fields import MAX_LAYERS, Fields
from converters.architectures.gguf_dims import Dims, architecture_fields, dims_from_gguf
from converters.architectures.layer_types import layer_types_from_config, layer_types_from_gguf, layer_types_to_config, sliding_pattern
from converters.architectures.rope import rope_from_config, rope_from_gguf, rope_to_config
from converters.spec import LayerType, ModelSpec, NormSpec, RopeSpec
from toolkit.errors import UnsupportedModelError

MODEL_TYPES = ("gemma", "gemma2", "gemma3_text")
GGUF_ARCHITECTURES = ("gemma", "gemma2", "gemma3")
_ARCHITECTURES = {"gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM"}
_ACTIVATION = "gelu_pytorch_tanh"
_PERIOD = {"gemma2": 2, "gemma3_text": 6}
# Gemma 2's softcaps where a file does not state them; the other generations have none unless stated.
_DEFAULT_CAPS = {"gemma2": (50.0, 30.0)}
_THETAS: dict[str, dict[LayerType, float]] = {
    "gemma": {"full": 10000.0},
    "gemma2": {"full": 10000.0},
    "gemma3_text": {"full": 1_000_000.0, "sliding": 10000.0},
}
# The two 27B models alone scale scores by hidden_size / heads instead of head_dim. GGUF does not say so; llama.cpp too
# knows them by their number of layers.
_LAYERS_OF_27B = {"gemma2": 46, "gemma3_text": 62}


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Read config.json of `gemma`, `gemma2` or `gemma3_text`."""
    fields = Fields(config, "config.json")
    model_type = fields.text("model_type")
    if fields.boolean("use_bidirectional_attention", default=False):
        raise UnsupportedModelError(
            "a Gemma with bidirectional attention is an encoder, not a text generator",
            why="config.json says use_bidirectional_attention",
            fix="use a causal Gemma checkpoint",
        )
    dims = dims_from_config(fields, tie_default=True, head_dim_default=256)
    period = fields.integer("sliding_window_pattern", default=fields.integer("_sliding_window_pattern", default=_PERIOD.get(model_type, 1)))
    layer_types = sliding_pattern(dims["n_layers"], period if model_type in _PERIOD else 1)
    layer_types = layer_types_from_config(fields, layer_types) if model_type in _PERIOD else layer_types
    return _spec(
        model_type,
        dims,
        layer_types,
        rope=rope_from_config(fields, layer_types, _THETAS[model_type]),
        eps=fields.number("rms_norm_eps", default=1e-6),
        window=fields.integer("sliding_window", default=4096) if "sliding" in layer_types else None,
        query_scalar=fields.number("query_pre_attn_scalar", default=256.0) if model_type in _PERIOD else float(dims["head_dim"]),
        caps=_caps(fields, model_type, ("attn_logit_softcapping", "final_logit_softcapping")),
        has_attention_bias=fields.boolean("attention_bias", default=False),
    )


def spec_from_gguf(gguf: GgufView) -> ModelSpec:
    """Read a GGUF of architecture `gemma`, `gemma2` or `gemma3`."""
    dims, fields = dims_from_gguf(gguf), architecture_fields(gguf)
    architecture = str(gguf.metadata["general.architecture"])
    model_type = "gemma3_text" if architecture == "gemma3" else architecture
    layer_types = layer_types_from_gguf(fields, sliding_pattern(dims["n_layers"], _PERIOD.get(model_type, 1)))
    thetas = _THETAS[model_type]
    full = rope_from_gguf(gguf, fields, dims["head_dim"], thetas["full"])
    local = RopeSpec(fields.number("rope.freq_base_swa", default=thetas["sliding"])) if "sliding" in thetas else full
    is_27b = dims["n_layers"] == _LAYERS_OF_27B.get(model_type)
    return _spec(
        model_type,
        dims,
        layer_types,
        rope={layer_type: full if layer_type == "full" else local for layer_type in dict.fromkeys(layer_types)},
        eps=fields.number("attention.layer_norm_rms_epsilon"),
        window=fields.integer("attention.sliding_window", default=4096) if "sliding" in layer_types else None,
        query_scalar=dims["hidden_size"] / dims["n_heads"] if is_27b else float(dims["head_dim"]),
        caps=_caps(fields, model_type, ("attn_logit_softcapping", "final_logit_softcapping")),
        has_attention_bias=False,
    )


def _spec(
    model_type: str,
    dims: Dims,
    layer_types: tuple[LayerType, ...],
    *,
    rope: dict[LayerType, RopeSpec],
    eps: float,
    window: int | None,
    query_scalar: float,
    caps: tuple[float | None, float | None],
    has_attention_bias: bool,
) -> ModelSpec:
    return ModelSpec(
        model_type=model_type,
        architecture=_ARCHITECTURES[model_type],
        layer_types=layer_types,
        rope=rope,
        norm=NormSpec(eps, weight_offset=1.0, has_qk_norm=model_type == "gemma3_text", has_post_norms=model_type in _PERIOD),
        activation=_ACTIVATION,
        sliding_window=window,
        has_attention_bias=has_attention_bias,
        query_pre_attn_scalar=query_scalar,
        attn_logit_softcap=caps[0],
        final_logit_softcap=caps[1],
        embedding_scale=math.sqrt(dims["hidden_size"]),
        **dims,
    )


def _caps(fields: Fields, model_type: str, keys: tuple[str, str]) -> tuple[float | None, float | None]:
    """Attention and final softcap; a key that is present and null means none."""
    defaults = _DEFAULT_CAPS.get(model_type, (None, None))
    attention, final = (
        fields.optional_number(key) if fields.prefix + key in fields.data else default for key, default in zip(keys, defaults, strict=True)
    )
    return attention, final


def config_from_spec(spec: ModelSpec) -> dict[str, Any]:
    """config.json for this spec."""
    config = common_config(spec) | {"attention_bias": spec.has_attention_bias, "hidden_activation": spec.activation}
    if spec.model_type == "gemma":
        return config | {"hidden_act": spec.activation, **rope_to_config(spec.rope, by_layer_type=False)}
    full_layers = [i for i, layer_type in enumerate(spec.layer_types) if layer_type == "full"]
    period = full_layers[0] + 1 if full_layers else MAX_LAYERS
    scalar = spec.query_pre_attn_scalar or float(spec.head_dim)
    config |= {
        "query_pre_attn_scalar": int(scalar) if scalar.is_integer() else scalar,
        "attn_logit_softcapping": spec.attn_logit_softcap,
        "final_logit_softcapping": spec.final_logit_softcap,
        "sliding_window": spec.sliding_window,
        "layer_types": layer_types_to_config(spec.layer_types),
        **rope_to_config(spec.rope, by_layer_type=spec.model_type == "gemma3_text"),
    }
    return config | ({"sliding_window_pattern": period} if spec.model_type == "gemma3_text" else {})


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Hugging Face name to shape."""
    return {hf: shape for _, hf, shape in tensor_table(spec, has_output_bias=True)}


def gguf_names(spec: ModelSpec) -> dict[str, str]:
    """GGUF name to Hugging Face name."""
    return {gguf: hf for gguf, hf, _ in tensor_table(spec, has_output_bias=True)}


def from_gguf(gguf_name: str, array: FloatArray, spec: ModelSpec) -> tuple[str, FloatArray]:
    """Rename, and take back the 1 that llama.cpp's converter added to every norm weight."""
    if gguf_name.endswith("norm.weight"):
        array = array - 1.0
    return gguf_names(spec)[gguf_name], array


def to_gguf(hf_name: str, array: FloatArray, spec: ModelSpec) -> FloatArray:
    """Add the 1 that llama.cpp expects in every norm weight."""
    return array + np.float32(1.0) if hf_name.endswith("norm.weight") else array
