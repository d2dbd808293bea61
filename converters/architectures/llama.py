"""Llama family: Llama 2, 3, 3.1, 3.2 (text), TinyLlama, SmolLM and SmolLM2.

Plain RMSNorm, SwiGLU, grouped-query attention; Llama 3.1 and later rescale RoPE ("llama3"). In GGUF the rows of q and k
are permuted, because llama.cpp rotates neighbouring pairs where Hugging Face rotates the two halves of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from converters.architectures.base import FloatArray, GgufView
from converters.architectures.config_dims import common_config, dims_from_config
from converters.architectures.decoder import tensor_table
from converters.architectures.fields import Fields
from converters.architectures.gguf_dims import architecture_fields, dims_from_gguf
from converters.architectures.layer_types import all_full
from converters.architectures.rope import rope_from_config, rope_from_gguf, rope_to_config
from converters.spec import ModelSpec, NormSpec
from toolkit.errors import UnsupportedModelError

MODEL_TYPES = ("llama",)
GGUF_ARCHITECTURES = ("llama",)
_DEFAULT_THETA = 10000.0


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Read config.json. `head_dim` defaults to hidden_size / heads, `tie_word_embeddings` to false, as in transformers."""
    fields = Fields(config, "config.json")
    if fields.boolean("mlp_bias", default=False):
        raise UnsupportedModelError("a Llama with MLP biases is not supported", why="config.json says mlp_bias", fix="use one without")
    dims = dims_from_config(fields, tie_default=False)
    layer_types = all_full(dims["n_layers"])
    return ModelSpec(
        model_type="llama",
        architecture="LlamaForCausalLM",
        layer_types=layer_types,
        rope=rope_from_config(fields, layer_types, {"full": _DEFAULT_THETA}),
        norm=NormSpec(fields.number("rms_norm_eps", default=1e-6)),
        activation=fields.activation("hidden_act", default="silu"),
        has_attention_bias=fields.boolean("attention_bias", default=False),
        **dims,
    )


def spec_from_gguf(gguf: GgufView) -> ModelSpec:
    """Read a GGUF of architecture `llama`."""
    dims, fields = dims_from_gguf(gguf), architecture_fields(gguf)
    return ModelSpec(
        model_type="llama",
        architecture="LlamaForCausalLM",
        layer_types=all_full(dims["n_layers"]),
        rope={"full": rope_from_gguf(gguf, fields, dims["head_dim"], _DEFAULT_THETA)},
        norm=NormSpec(fields.number("attention.layer_norm_rms_epsilon")),
        activation="silu",
        has_attention_bias=gguf.shape("blk.0.attn_q.bias") is not None,
        **dims,
    )


def config_from_spec(spec: ModelSpec) -> dict[str, Any]:
    """config.json for this spec."""
    return common_config(spec) | {
        "attention_bias": spec.has_attention_bias,
        "hidden_act": spec.activation,
        "mlp_bias": False,
        **rope_to_config(spec.rope, by_layer_type=False),
    }


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Hugging Face name to shape; with attention biases the output projection has one too."""
    return {hf: shape for _, hf, shape in tensor_table(spec, has_output_bias=True)}


def gguf_names(spec: ModelSpec) -> dict[str, str]:
    """GGUF name to Hugging Face name."""
    return {gguf: hf for gguf, hf, _ in tensor_table(spec, has_output_bias=True)}


def from_gguf(gguf_name: str, array: FloatArray, spec: ModelSpec) -> tuple[str, FloatArray]:
    """Rename, and put the rows of q and k back in Hugging Face's order."""
    part = gguf_name.split(".", 2)[-1]
    if part.startswith("attn_q."):
        array = unpermute_rows(array, spec.n_heads)
    elif part.startswith("attn_k."):
        array = unpermute_rows(array, spec.n_kv_heads)
    return gguf_names(spec)[gguf_name], array


def to_gguf(hf_name: str, array: FloatArray, spec: ModelSpec) -> FloatArray:
    """Put the rows of q and k in llama.cpp's order."""
    if ".q_proj." in hf_name:
        return permute_rows(array, spec.n_heads)
    return permute_rows(array, spec.n_kv_heads) if ".k_proj." in hf_name else array


def unpermute_rows(array: FloatArray, n_heads: int) -> FloatArray:
    """Turn interleaved pairs (x0, y0, x1, y1, ...) of each head into halves (x0, x1, ..., y0, y1, ...).

    Args:
        array: (n_heads * head_dim, ...) as llama.cpp stores it.
    """
    pairs = array.reshape(n_heads, array.shape[0] // n_heads // 2, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def permute_rows(array: FloatArray, n_heads: int) -> FloatArray:
    """Turn the halves (x0, x1, ..., y0, y1, ...) of each head into interleaved pairs (x0, y0, x1, y1, ...).

    Args:
        array: (n_heads * head_dim, ...) as Hugging Face stores it.
    """
    halves = array.reshape(n_heads, 2, array.shape[0] // n_heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)
