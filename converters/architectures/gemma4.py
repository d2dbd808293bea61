"""Gemma 4, its dense text models.

What sets it apart: full layers have wider heads than sliding ones, rotate only a part of each, and may make values of the
keys' projection; the last layers take the keys and values of earlier ones, and may have an MLP twice as wide; in the small
models every layer gets a part of a second, per-layer embedding of the token. Each layer's output is multiplied by a scalar
that is stored like a weight. Norm weights are stored as they multiply, and attention scores are not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from converters.architectures.base import FloatArray, GgufView
from converters.architectures.config_dims import common_config, dims_from_config
from converters.architectures.decoder import EMBEDDING, LM_HEAD
from converters.architectures.fields import MAX_VOCAB, Fields
from converters.architectures.gemma4_heads import FullHeads, full_heads
from converters.architectures.kv_sharing import kv_shared_layers_from_config, refuse_attention_bias
from converters.architectures.layer_types import layer_types_from_config, layer_types_to_config, sliding_pattern
from converters.architectures.no_gguf import gguf_refusal
from converters.architectures.rope import HF_LAYER_TYPES
from converters.spec import LayerType, ModelSpec, NormSpec, PerLayerInputSpec, RopeSpec
from toolkit.errors import UnsupportedModelError

MODEL_TYPES = ("gemma4_text",)
GGUF_ARCHITECTURES: tuple[str, ...] = ()
Shape = tuple[int, ...]
_PERIOD = 6
# What transformers assumes where a key is absent; the others have the same default in every family.
_DEFAULTS = {"vocab_size": 262_144, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131_072}
_PROPORTIONAL = "proportional"
_ROPE_DEFAULTS: dict[LayerType, RopeSpec] = {
    "full": RopeSpec(1_000_000.0, {"rope_type": _PROPORTIONAL, "partial_rotary_factor": 0.25}),
    "sliding": RopeSpec(10000.0),
}


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Read the config of `gemma4_text`, on its own or as the `text_config` of a multimodal one."""
    fields = Fields({**_DEFAULTS, **config}, "config.json")
    _refuse_variants(fields)
    refuse_attention_bias(fields)
    dims = dims_from_config(fields, tie_default=True, head_dim_default=256)
    layer_types = layer_types_from_config(fields, (*sliding_pattern(dims["n_layers"] - 1, _PERIOD), "full"))
    if layer_types[-1] != "full":
        raise fields.fail("layer_types", "must end in full_attention, transformers would change it to that")
    heads = full_heads(fields, layer_types, dims["n_heads"], dims["head_dim"], dims["n_kv_heads"])
    n_shared = kv_shared_layers_from_config(fields, layer_types, default=0)
    n_kept = dims["n_layers"] - n_shared
    is_wider = n_shared > 0 and fields.boolean("use_double_wide_mlp", default=False)
    widths = (dims["intermediate_size"],) * n_kept + (2 * dims["intermediate_size"],) * n_shared
    return ModelSpec(
        model_type="gemma4_text",
        architecture="Gemma4ForCausalLM",
        layer_types=layer_types,
        rope=_rope(fields, layer_types, heads),
        norm=NormSpec(fields.number("rms_norm_eps", default=1e-6), has_qk_norm=True, has_post_norms=True),
        activation=fields.activation("hidden_activation", default="gelu_pytorch_tanh"),
        sliding_window=fields.integer("sliding_window", default=512) if "sliding" in layer_types else None,
        query_pre_attn_scalar=1.0,
        final_logit_softcap=fields.optional_number("final_logit_softcapping"),
        embedding_scale=math.sqrt(dims["hidden_size"]),
        n_kv_shared_layers=n_shared,
        full_head_dim=heads.head_dim,
        n_full_kv_heads=heads.n_kv_heads,
        has_keys_as_values=heads.has_keys_as_values,
        intermediate_sizes=widths if is_wider else (),
        per_layer_inputs=_per_layer_inputs(fields, dims["vocab_size"]),
        **dims,
    )


def _refuse_variants(fields: Fields) -> None:
    if fields.boolean("enable_moe_block", default=False):
        raise UnsupportedModelError(
            "this Gemma 4 is a mixture of experts",
            why="config.json says enable_moe_block",
            fix="use a dense Gemma 4; support would need a router and expert matmuls in every target, and a recipe rule for experts",
        )
    if fields.data.get("use_bidirectional_attention") == "all":
        raise UnsupportedModelError(
            "a Gemma with bidirectional attention is an encoder, not a text generator",
            why="config.json says use_bidirectional_attention: all",
            fix="use a causal Gemma checkpoint",
        )


def _per_layer_inputs(fields: Fields, vocab_size: int) -> PerLayerInputSpec | None:
    width = fields.integer("hidden_size_per_layer_input", minimum=0, default=256)
    if not width:
        return None
    rows = fields.integer("vocab_size_per_layer_input", maximum=MAX_VOCAB, default=262_144)
    if rows < vocab_size:
        raise fields.fail("vocab_size_per_layer_input", f"{rows} leaves tokens of the vocabulary of {vocab_size} without a row")
    return PerLayerInputSpec(rows, width)


def _rope(fields: Fields, layer_types: tuple[LayerType, ...], heads: FullHeads) -> dict[LayerType, RopeSpec]:
    """RoPE of each layer type; the family has no older spelling than `rope_parameters` by layer type."""
    nested = Fields(fields.mapping("rope_parameters"), "config.json (rope_parameters)")
    result: dict[LayerType, RopeSpec] = {}
    for layer_type in dict.fromkeys(layer_types):
        name, default = HF_LAYER_TYPES[layer_type], _ROPE_DEFAULTS[layer_type]
        if not nested.data:
            result[layer_type] = default
            continue
        inner = Fields(nested.mapping(name), f"{nested.origin}.{name}")
        kind, theta = inner.text("rope_type"), inner.number("rope_theta")
        if kind == "default" and inner.number("partial_rotary_factor", default=1.0) == 1.0:
            result[layer_type] = RopeSpec(theta)
        elif kind == _PROPORTIONAL and layer_type == "full" and inner.number("factor", default=1.0) == 1.0:
            part = inner.number("partial_rotary_factor", default=1.0)
            if int(part * heads.head_dim // 2) < 1:
                raise inner.fail("partial_rotary_factor", f"{part:g} rotates nothing of a head of {heads.head_dim}")
            result[layer_type] = RopeSpec(theta, {"rope_type": _PROPORTIONAL, "partial_rotary_factor": part})
        else:
            raise UnsupportedModelError(
                f"RoPE {kind!r} in {layer_type} layers is not supported for Gemma 4",
                why=f"{inner.origin} asks for it; read are default, and proportional without a factor in full layers",
                fix="use a checkpoint without it",
            )
    return result


def config_from_spec(spec: ModelSpec) -> dict[str, Any]:
    """config.json of the text model alone."""
    rope = {
        HF_LAYER_TYPES[kind]: {"rope_type": "default", **(rope.scaling or {}), "rope_theta": rope.theta} for kind, rope in spec.rope.items()
    }
    inputs = spec.per_layer_inputs
    return common_config(spec) | {
        "hidden_activation": spec.activation,
        "attention_bias": False,
        "sliding_window": spec.sliding_window,
        "layer_types": layer_types_to_config(spec.layer_types),
        "rope_parameters": rope,
        "final_logit_softcapping": spec.final_logit_softcap,
        "global_head_dim": spec.full_head_dim,
        "num_global_key_value_heads": spec.n_full_kv_heads,
        "attention_k_eq_v": spec.has_keys_as_values,
        "num_kv_shared_layers": spec.n_kv_shared_layers,
        "use_double_wide_mlp": bool(spec.intermediate_sizes),
        "vocab_size_per_layer_input": inputs.vocab_size if inputs else spec.vocab_size,
        "hidden_size_per_layer_input": inputs.hidden_size if inputs else 0,
        "enable_moe_block": False,
    }


def tensor_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Hugging Face name to shape. Layers that share keys and values have none of their own."""
    hidden = spec.hidden_size
    shapes: dict[str, Shape] = {EMBEDDING: (spec.vocab_size, hidden)}
    if spec.per_layer_inputs is not None:
        packed = spec.n_layers * spec.per_layer_inputs.hidden_size
        shapes |= {
            "model.embed_tokens_per_layer.weight": (spec.per_layer_inputs.vocab_size, packed),
            "model.per_layer_model_projection.weight": (packed, hidden),
            "model.per_layer_projection_norm.weight": (spec.per_layer_inputs.hidden_size,),
        }
    for layer_index in range(spec.n_layers):
        shapes |= {f"model.layers.{layer_index}.{name}": shape for name, shape in _layer(spec, layer_index).items()}
    shapes["model.norm.weight"] = (hidden,)
    return shapes if spec.tie_embeddings else shapes | {LM_HEAD: (spec.vocab_size, hidden)}


def _layer(spec: ModelSpec, layer_index: int) -> dict[str, Shape]:
    hidden, inner, head_dim = spec.hidden_size, spec.intermediate_size_of(layer_index), spec.head_dim_of(layer_index)
    queries, keys = spec.n_heads * head_dim, spec.n_kv_heads_of(layer_index) * head_dim
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    shapes: dict[str, Shape] = {f"{name}_layernorm.weight": (hidden,) for name in norms}
    shapes |= {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.q_norm.weight": (head_dim,),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "layer_scalar": (1,),
    }
    if layer_index < spec.n_kv_layers:
        shapes |= {"self_attn.k_proj.weight": (keys, hidden), "self_attn.k_norm.weight": (head_dim,)}
        if not (spec.has_keys_as_values and spec.layer_types[layer_index] == "full"):
            shapes["self_attn.v_proj.weight"] = (keys, hidden)
    if spec.per_layer_inputs is not None:
        shapes |= {
            "per_layer_input_gate.weight": (spec.per_layer_inputs.hidden_size, hidden),
            "per_layer_projection.weight": (hidden, spec.per_layer_inputs.hidden_size),
            "post_per_layer_input_norm.weight": (hidden,),
        }
    return shapes


def spec_from_gguf(gguf: GgufView) -> NoReturn:
    """Refused by name."""
    raise gguf_refusal("Gemma 4")


def gguf_names(spec: ModelSpec) -> dict[str, str]:
    """Refused by name."""
    raise gguf_refusal("Gemma 4")


def from_gguf(gguf_name: str, array: FloatArray, spec: ModelSpec) -> tuple[str, FloatArray]:
    """Refused by name."""
    raise gguf_refusal("Gemma 4")


def to_gguf(hf_name: str, array: FloatArray, spec: ModelSpec) -> FloatArray:
    """Refused by name."""
    raise gguf_refusal("Gemma 4")
