"""ModelSpec: everything about a decoder's shape and arithmetic that a converter needs, in one frozen value.

Field names follow the checkpoints' own spelling. A spec is data only: each model family (`converters.architectures`)
turns a config or a GGUF header into one, and back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

LayerType = Literal["full", "sliding"]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of one layer type: base `theta` and, if positions are rescaled, the scaling as data.

    `scaling` holds a `rope_type` ("linear", "llama3" or "yarn") and the numbers that type needs, spelled as in
    Hugging Face's `rope_parameters` (without `rope_theta`). None means plain RoPE.
    """

    theta: float
    scaling: dict[str, Any] | None = None


@dataclass(frozen=True)
class NormSpec:
    """RMSNorm: y = x / sqrt(mean(x^2) + eps) * (weight + weight_offset).

    `weight_offset` is 1.0 in Gemma (weights are stored around zero), 0.0 elsewhere. `has_qk_norm`: queries and keys are
    normalized per head. `has_post_norms`: attention and MLP outputs are normalized before they are added back.
    """

    eps: float
    weight_offset: float = 0.0
    has_qk_norm: bool = False
    has_post_norms: bool = False


@dataclass(frozen=True)
class PerLayerInputSpec:
    """A second embedding of each token that every layer gets a part of (Gemma 3n and 4).

    Its table has `vocab_size` rows of `hidden_size` elements for each layer.
    """

    vocab_size: int
    hidden_size: int


@dataclass(frozen=True)
class AltUpSpec:
    """Gemma 3n's several residual streams, of which a layer works on one and predicts the others (AltUp), and its low-rank
    residual (LAuReL).

    `n_inputs` streams, of which `active_index` goes through the layer. `coef_clip` bounded the mixing coefficients in
    training. `corrects_scale`: the active stream is scaled before it gates the per-layer input. `laurel_rank` is the inner
    width of LAuReL.
    """

    n_inputs: int
    active_index: int
    coef_clip: float
    corrects_scale: bool
    laurel_rank: int


@dataclass(frozen=True)
class ModelSpec:
    """One decoder-only text model. Counts are plain integers, widths are in elements.

    `layer_types` has one entry a layer; `rope` one entry for each layer type that occurs. `eos_token_ids` are all the ids
    that end an answer, the model's own first. `embedding_scale` multiplies token embeddings (Gemma: sqrt(hidden_size)).
    `query_pre_attn_scalar` s makes attention scores q.k / sqrt(s) instead of q.k / sqrt(head_dim).

    `n_kv_shared_layers`: that many last layers have no keys and values of their own, they take those of the last earlier
    layer of their type. `full_head_dim` and `n_full_kv_heads` differ from `head_dim` and `n_kv_heads` in full layers.
    `has_keys_as_values`: full layers have no value projection, values are made of the keys' one. `intermediate_sizes` has
    one entry a layer where they differ. `activation_sparsity` has one entry a layer: that share of a gate's elements,
    taken as normally distributed, is set to zero before the activation.
    """

    model_type: str
    architecture: str
    n_layers: int
    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context_length: int
    layer_types: tuple[LayerType, ...]
    rope: dict[LayerType, RopeSpec]
    norm: NormSpec
    activation: str
    sliding_window: int | None = None
    tie_embeddings: bool = False
    has_attention_bias: bool = False
    query_pre_attn_scalar: float | None = None
    attn_logit_softcap: float | None = None
    final_logit_softcap: float | None = None
    embedding_scale: float | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    n_kv_shared_layers: int = 0
    full_head_dim: int | None = None
    n_full_kv_heads: int | None = None
    has_keys_as_values: bool = False
    intermediate_sizes: tuple[int, ...] = ()
    activation_sparsity: tuple[float, ...] = ()
    per_layer_inputs: PerLayerInputSpec | None = None
    altup: AltUpSpec | None = None

    def head_dim_of(self, layer_index: int) -> int:
        """Width of one head of a layer."""
        return self.full_head_dim or self.head_dim if self.layer_types[layer_index] == "full" else self.head_dim

    def n_kv_heads_of(self, layer_index: int) -> int:
        """Heads of keys and values of a layer."""
        return self.n_full_kv_heads or self.n_kv_heads if self.layer_types[layer_index] == "full" else self.n_kv_heads

    def intermediate_size_of(self, layer_index: int) -> int:
        """Inner width of a layer's MLP."""
        return self.intermediate_sizes[layer_index] if self.intermediate_sizes else self.intermediate_size

    @property
    def n_kv_layers(self) -> int:
        """Layers that keep keys and values of their own, the first ones."""
        return self.n_layers - self.n_kv_shared_layers

    @property
    def n_parameters(self) -> int:
        """Weights in the checkpoint; a tied table counts once."""
        from converters.architectures import family_of

        return sum(math.prod(shape) for shape in family_of(self.model_type).tensor_shapes(self).values())

    def kv_bytes_per_token(self, bytes_per_value: float) -> int:
        """KV cache a token adds while every layer keeps it: 2 * n_kv_heads * head_dim values for each of `n_kv_layers`.

        An upper bound where layers slide: those stop growing at `sliding_window` tokens if the engine keeps a ring buffer.
        """
        return int(2 * sum(self.n_kv_heads_of(i) * self.head_dim_of(i) for i in range(self.n_kv_layers)) * bytes_per_value)

    def as_dict(self) -> dict[str, Any]:
        """The spec as JSON data (tuples become lists); `from_dict` reads it back."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelSpec:
        """The inverse of `as_dict`, also after a trip through JSON.

        Raises:
            TypeError: A field is missing or unknown (a manifest reader turns this into its own error).
        """
        fields = dict(data)
        fields["rope"] = {layer_type: RopeSpec(**rope) for layer_type, rope in fields["rope"].items()}
        fields["norm"] = NormSpec(**fields["norm"])
        fields["layer_types"] = tuple(fields["layer_types"])
        for name in ("eos_token_ids", "intermediate_sizes", "activation_sparsity"):
            fields[name] = tuple(fields.get(name, ()))
        for name, kind in (("per_layer_inputs", PerLayerInputSpec), ("altup", AltUpSpec)):
            if fields.get(name) is not None:
                fields[name] = kind(**fields[name])
        return cls(**fields)
