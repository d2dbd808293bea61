"""Gemma 3n, its text model.

What sets it apart: every layer gets a part of a second, per-layer embedding of the token; the residual is several streams,
of which a layer works on one and predicts the others (AltUp); a low-rank residual (LAuReL) runs beside attention; the last
layers take the keys and values of earlier ones; the gates of some layers keep only their largest elements. Norm weights
are stored as they multiply, and attention scores are not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from converters.architectures.base import FloatArray, GgufView
from converters.architectures.config_dims import common_config, dims_from_config
from converters.architectures.decoder import EMBEDDING, LM_HEAD
from converters.architectures.fields import MAX_VOCAB, Fields
from converters.architectures.kv_sharing import kv_shared_layers_from_config, refuse_attention_bias
from converters.architectures.layer_types import layer_types_from_config, layer_types_to_config, sliding_pattern
from converters.architectures.no_gguf import gguf_refusal
from converters.architectures.rope import rope_from_config, rope_to_config
from converters.spec import AltUpSpec, LayerType, ModelSpec, NormSpec, PerLayerInputSpec

MODEL_TYPES = ("gemma3n_text",)
GGUF_ARCHITECTURES: tuple[str, ...] = ()
Shape = tuple[int, ...]
_PERIOD = 5
_THETAS: dict[LayerType, float] = {"full": 1_000_000.0, "sliding": 10000.0}
# What transformers assumes where a key is absent; the others have the same default in every family.
_DEFAULTS = {"vocab_size": 262_400, "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 32_768}
# And where none says which gates are sparse: the first ten layers of a deep model.
_SPARSE_LAYERS, _SPARSITY = 10, 0.95


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Read the config of `gemma3n_text`, on its own or as the `text_config` of a multimodal one."""
    config = {**_DEFAULTS, **config}
    fields = Fields(config, "config.json")
    sizes = _intermediate_sizes(fields)
    refuse_attention_bias(fields)
    plain = Fields({**config, "intermediate_size": sizes[0]} if sizes else config, fields.origin)
    dims = dims_from_config(plain, tie_default=True, head_dim_default=256)
    layer_types = layer_types_from_config(fields, sliding_pattern(dims["n_layers"], _PERIOD))
    if sizes and len(sizes) != dims["n_layers"]:
        raise fields.fail("intermediate_size", f"must list {dims['n_layers']} layers, lists {len(sizes)}")
    has_cap = "final_logit_softcapping" in config
    return ModelSpec(
        model_type="gemma3n_text",
        architecture="Gemma3nForCausalLM",
        layer_types=layer_types,
        rope=rope_from_config(fields, layer_types, _THETAS),
        norm=NormSpec(fields.number("rms_norm_eps", default=1e-6), has_qk_norm=True, has_post_norms=True),
        activation=fields.activation("hidden_activation", default="gelu_pytorch_tanh"),
        sliding_window=fields.integer("sliding_window", default=512) if "sliding" in layer_types else None,
        query_pre_attn_scalar=1.0,
        final_logit_softcap=fields.optional_number("final_logit_softcapping") if has_cap else 30.0,
        embedding_scale=math.sqrt(dims["hidden_size"]),
        n_kv_shared_layers=kv_shared_layers_from_config(fields, layer_types, default=15),
        intermediate_sizes=sizes if len(set(sizes)) > 1 else (),
        activation_sparsity=_activation_sparsity(fields, dims["n_layers"]),
        per_layer_inputs=PerLayerInputSpec(
            fields.integer("vocab_size_per_layer_input", maximum=MAX_VOCAB, default=262_144),
            fields.integer("hidden_size_per_layer_input", default=256),
        ),
        altup=_altup(fields),
        **dims,
    )


def _intermediate_sizes(fields: Fields) -> tuple[int, ...]:
    """One width a layer where the config lists them; empty where it states one for all."""
    listed = fields.data.get("intermediate_size")
    if not isinstance(listed, list):
        return ()
    if not listed:
        raise fields.fail("intermediate_size", "is an empty list")
    return tuple(Fields({"intermediate_size": width}, fields.origin).integer("intermediate_size") for width in listed)


def _activation_sparsity(fields: Fields, n_layers: int) -> tuple[float, ...]:
    key = "activation_sparsity_pattern"
    if key not in fields:
        n_sparse = _SPARSE_LAYERS if n_layers > _SPARSE_LAYERS else 0
        return (_SPARSITY,) * n_sparse + (0.0,) * (n_layers - n_sparse)
    listed = fields.data[key]
    if not isinstance(listed, list) or len(listed) != n_layers:
        raise fields.fail(key, f"must list {n_layers} layers")
    for share in listed:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise fields.fail(key, f"must hold shares from 0 to below 1, found {str(share)[:40]}")
    return tuple(float(share) for share in listed)


def _altup(fields: Fields) -> AltUpSpec:
    n_inputs = fields.integer("altup_num_inputs", maximum=64, default=4)
    return AltUpSpec(
        n_inputs=n_inputs,
        active_index=fields.integer("altup_active_idx", minimum=0, maximum=n_inputs - 1, default=0),
        coef_clip=fields.number("altup_coef_clip", default=120.0),
        corrects_scale=fields.boolean("altup_correct_scale", default=True),
        laurel_rank=fields.integer("laurel_rank", default=64),
    )


def config_from_spec(spec: ModelSpec) -> dict[str, Any]:
    """config.json of the text model alone."""
    assert spec.per_layer_inputs is not None and spec.altup is not None
    return common_config(spec) | {
        "intermediate_size": [spec.intermediate_size_of(i) for i in range(spec.n_layers)],
        "hidden_activation": spec.activation,
        "attention_bias": False,
        "sliding_window": spec.sliding_window,
        "layer_types": layer_types_to_config(spec.layer_types),
        "final_logit_softcapping": spec.final_logit_softcap,
        "num_kv_shared_layers": spec.n_kv_shared_layers,
        "activation_sparsity_pattern": list(spec.activation_sparsity),
        "vocab_size_per_layer_input": spec.per_layer_inputs.vocab_size,
        "hidden_size_per_layer_input": spec.per_layer_inputs.hidden_size,
        "altup_num_inputs": spec.altup.n_inputs,
        "altup_active_idx": spec.altup.active_index,
        "altup_coef_clip": spec.altup.coef_clip,
        "altup_correct_scale": spec.altup.corrects_scale,
        "laurel_rank": spec.altup.laurel_rank,
        **rope_to_config(spec.rope, by_layer_type=True),
    }


def tensor_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Hugging Face name to shape. Layers that share keys and values have none of their own."""
    assert spec.per_layer_inputs is not None and spec.altup is not None
    hidden, streams = spec.hidden_size, range(spec.altup.n_inputs - 1)
    packed = spec.n_layers * spec.per_layer_inputs.hidden_size
    shapes: dict[str, Shape] = {
        EMBEDDING: (spec.vocab_size, hidden),
        "model.embed_tokens_per_layer.weight": (spec.per_layer_inputs.vocab_size, packed),
        "model.per_layer_model_projection.weight": (packed, hidden),
        "model.per_layer_projection_norm.weight": (spec.per_layer_inputs.hidden_size,),
    }
    for name in ("altup_projections", "altup_unembed_projections"):
        shapes |= {f"model.{name}.{index}.weight": (hidden, hidden) for index in streams}
    for layer_index in range(spec.n_layers):
        shapes |= {f"model.layers.{layer_index}.{name}": shape for name, shape in _layer(spec, layer_index).items()}
    shapes["model.norm.weight"] = (hidden,)
    return shapes if spec.tie_embeddings else shapes | {LM_HEAD: (spec.vocab_size, hidden)}


def _layer(spec: ModelSpec, layer_index: int) -> dict[str, Shape]:
    assert spec.per_layer_inputs is not None and spec.altup is not None
    hidden, inner, part = spec.hidden_size, spec.intermediate_size_of(layer_index), spec.per_layer_inputs.hidden_size
    queries, keys, n_inputs = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim, spec.altup.n_inputs
    own_keys: dict[str, Shape] = {
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.k_norm.weight": (spec.head_dim,),
    }
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    return {
        **{f"{name}_layernorm.weight": (hidden,) for name in norms},
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.q_norm.weight": (spec.head_dim,),
        "self_attn.o_proj.weight": (hidden, queries),
        **(own_keys if layer_index < spec.n_kv_layers else {}),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "altup.correct_output_scale": (hidden,),
        "altup.correction_coefs.weight": (n_inputs, n_inputs),
        "altup.prediction_coefs.weight": (n_inputs**2, n_inputs),
        "altup.modality_router.weight": (n_inputs, hidden),
        "altup.router_norm.weight": (hidden,),
        "laurel.linear_left.weight": (spec.altup.laurel_rank, hidden),
        "laurel.linear_right.weight": (hidden, spec.altup.laurel_rank),
        "laurel.post_laurel_norm.weight": (hidden,),
        "per_layer_input_gate.weight": (part, hidden),
        "per_layer_projection.weight": (hidden, part),
        "post_per_layer_input_norm.weight": (hidden,),
    }


def spec_from_gguf(gguf: GgufView) -> NoReturn:
    """Refused by name."""
    raise gguf_refusal("Gemma 3n")


def gguf_names(spec: ModelSpec) -> dict[str, str]:
    """Refused by name."""
    raise gguf_refusal("Gemma 3n")


def from_gguf(gguf_name: str, array: FloatArray, spec: ModelSpec) -> tuple[str, FloatArray]:
    """Refused by name."""
    raise gguf_refusal("Gemma 3n")


def to_gguf(hf_name: str, array: FloatArray, spec: ModelSpec) -> FloatArray:
    """Refused by name."""
    raise gguf_refusal("Gemma 3n")
