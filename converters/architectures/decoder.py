"""Tensor names and shapes of a gated-MLP decoder, composed from a spec's flags. Shared by every family here.

Shapes are (out_features, in_features) for matrices. GGUF names follow llama.cpp's table of standard tensor names.
"""

from __future__ import annotations

from converters.spec import ModelSpec

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
# Never renormalized or permuted by any converter, so these may be streamed in row blocks.
GGUF_TABLES = {"token_embd.weight": EMBEDDING, "output.weight": LM_HEAD}


def layer_parts(spec: ModelSpec, *, has_output_bias: bool = False) -> list[tuple[str, str, tuple[int, ...]]]:
    """(GGUF part, Hugging Face part, shape) of one layer, in the order a checkpoint is written."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    parts: list[tuple[str, str, tuple[int, ...]]] = [
        ("attn_norm.weight", "input_layernorm.weight", (hidden,)),
        ("attn_q.weight", "self_attn.q_proj.weight", (queries, hidden)),
        ("attn_k.weight", "self_attn.k_proj.weight", (keys, hidden)),
        ("attn_v.weight", "self_attn.v_proj.weight", (keys, hidden)),
        ("attn_output.weight", "self_attn.o_proj.weight", (hidden, queries)),
        ("ffn_gate.weight", "mlp.gate_proj.weight", (inner, hidden)),
        ("ffn_up.weight", "mlp.up_proj.weight", (inner, hidden)),
        ("ffn_down.weight", "mlp.down_proj.weight", (hidden, inner)),
    ]
    if spec.has_attention_bias:
        parts += [
            ("attn_q.bias", "self_attn.q_proj.bias", (queries,)),
            ("attn_k.bias", "self_attn.k_proj.bias", (keys,)),
            ("attn_v.bias", "self_attn.v_proj.bias", (keys,)),
        ]
        if has_output_bias:
            parts.append(("attn_output.bias", "self_attn.o_proj.bias", (hidden,)))
    if spec.norm.has_qk_norm:
        parts += [
            ("attn_q_norm.weight", "self_attn.q_norm.weight", (spec.head_dim,)),
            ("attn_k_norm.weight", "self_attn.k_norm.weight", (spec.head_dim,)),
        ]
    if spec.norm.has_post_norms:
        parts += [
            ("post_attention_norm.weight", "post_attention_layernorm.weight", (hidden,)),
            ("ffn_norm.weight", "pre_feedforward_layernorm.weight", (hidden,)),
            ("post_ffw_norm.weight", "post_feedforward_layernorm.weight", (hidden,)),
        ]
    else:
        parts.append(("ffn_norm.weight", "post_attention_layernorm.weight", (hidden,)))
    return parts


def tensor_table(spec: ModelSpec, *, has_output_bias: bool = False) -> list[tuple[str, str, tuple[int, ...]]]:
    """(GGUF name, Hugging Face name, shape) of every tensor of the model."""
    table: list[tuple[str, str, tuple[int, ...]]] = [("token_embd.weight", EMBEDDING, (spec.vocab_size, spec.hidden_size))]
    parts = layer_parts(spec, has_output_bias=has_output_bias)
    for layer_index in range(spec.n_layers):
        table += [(f"blk.{layer_index}.{gguf}", f"model.layers.{layer_index}.{hf}", shape) for gguf, hf, shape in parts]
    table.append(("output_norm.weight", "model.norm.weight", (spec.hidden_size,)))
    if not spec.tie_embeddings:
        table.append(("output.weight", LM_HEAD, (spec.vocab_size, spec.hidden_size)))
    return table


def kv_shared_tensors(spec: ModelSpec) -> set[str]:
    """Names of keys' and values' weights of layers that take those of an earlier layer: published files hold some, no model reads them."""
    parts = [f"{part}.{kind}" for part in ("k_proj", "v_proj", "k_norm", "v_norm") for kind in ("weight", "bias")]
    return {f"model.layers.{i}.self_attn.{part}" for i in range(spec.n_kv_layers, spec.n_layers) for part in parts}


_PER_LAYER = "hidden_size_per_layer_input"
_DECIDED_BY = {
    "embed_tokens_per_layer": f"vocab_size_per_layer_input, num_hidden_layers and {_PER_LAYER}",
    "per_layer_model_projection": f"num_hidden_layers, {_PER_LAYER} and hidden_size",
    **dict.fromkeys(("per_layer_input_gate", "per_layer_projection"), f"{_PER_LAYER} and hidden_size"),
    "per_layer_projection_norm": _PER_LAYER,
    "altup": "altup_num_inputs and hidden_size",
    "laurel": "laurel_rank and hidden_size",
    "q_proj": "num_attention_heads, head_dim and hidden_size",
    "k_proj": "num_key_value_heads, head_dim and hidden_size",
    "v_proj": "num_key_value_heads, head_dim and hidden_size",
    "o_proj": "hidden_size, num_attention_heads and head_dim",
    "mlp": "intermediate_size and hidden_size",
    "embed_tokens": "vocab_size and hidden_size",
    "lm_head": "vocab_size and hidden_size",
    "q_norm": "head_dim",
    "k_norm": "head_dim",
}


def deciding_keys(name: str) -> str:
    """The config.json keys that decide a tensor's shape, in words, for the error about one that has another."""
    return next((keys for part, keys in _DECIDED_BY.items() if part in name.split(".")), "hidden_size")
