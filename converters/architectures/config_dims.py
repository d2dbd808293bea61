"""The dimensions every Hugging Face decoder config states under the same keys, and the same keys written back."""

from __future__ import annotations

from typing import Any

from converters.architectures.fields import MAX_CONTEXT, MAX_LAYERS, MAX_VOCAB, Fields
from converters.architectures.gguf_dims import Dims
from converters.spec import ModelSpec


def dims_from_config(fields: Fields, *, tie_default: bool, head_dim_default: int | None = None) -> Dims:
    """Read dimensions and special tokens of a config.json.

    `head_dim_default` None means hidden_size / num_attention_heads.

    Raises:
        FormatError: A key is missing, has the wrong type or is out of range.
    """
    hidden, n_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    n_kv_heads = fields.integer("num_key_value_heads", default=n_heads)
    if "head_dim" not in fields and head_dim_default is None and hidden % n_heads:
        raise fields.fail("hidden_size", f"{hidden} is no multiple of num_attention_heads {n_heads}, and there is no head_dim")
    head_dim = fields.integer("head_dim", default=head_dim_default or max(1, hidden // n_heads))
    if n_heads % n_kv_heads:
        raise fields.fail("num_key_value_heads", f"{n_kv_heads} must divide num_attention_heads {n_heads}")
    if head_dim % 2:
        raise fields.fail("head_dim", f"must be even for RoPE, found {head_dim}")
    vocab_size = fields.integer("vocab_size", maximum=MAX_VOCAB)
    return Dims(
        n_layers=fields.integer("num_hidden_layers", maximum=MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_context_length=fields.integer("max_position_embeddings", maximum=MAX_CONTEXT),
        tie_embeddings=fields.boolean("tie_word_embeddings", default=tie_default),
        bos_token_id=fields.optional_integer("bos_token_id", maximum=vocab_size - 1),
        eos_token_ids=fields.token_ids("eos_token_id", vocab_size),
        pad_token_id=fields.optional_integer("pad_token_id", maximum=vocab_size - 1),
    )


def common_config(spec: ModelSpec) -> dict[str, Any]:
    """The config keys that every family writes alike."""
    stop: int | list[int] | None = list(spec.eos_token_ids) or None
    return {
        "architectures": [spec.architecture],
        "model_type": spec.model_type,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.n_layers,
        "num_attention_heads": spec.n_heads,
        "num_key_value_heads": spec.n_kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_context_length,
        "rms_norm_eps": spec.norm.eps,
        "tie_word_embeddings": spec.tie_embeddings,
        "bos_token_id": spec.bos_token_id,
        "eos_token_id": stop[0] if isinstance(stop, list) and len(stop) == 1 else stop,
        "pad_token_id": spec.pad_token_id,
        "use_cache": True,
    }
