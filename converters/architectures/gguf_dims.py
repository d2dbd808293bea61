"""The dimensions every GGUF decoder states under the same keys, read once for all families."""

from __future__ import annotations

from typing import Any, TypedDict

from converters.architectures.base import GgufView
from converters.architectures.fields import MAX_CONTEXT, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, Fields
from toolkit.errors import FormatError

# Control tokens that end a turn or a document, by the names the supported families give them. Runtimes that know only
# `eos_token_id` run on past them. A base model's vocabulary holds some too; it does no harm there.
TURN_END_TOKENS = ("<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>")
_CONTROL = 3


class Dims(TypedDict):
    """Keyword arguments of `ModelSpec` that need no family knowledge."""

    n_layers: int
    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context_length: int
    tie_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None


def architecture_fields(gguf: GgufView) -> Fields:
    """Metadata under the architecture's own prefix, e.g. `llama.block_count` as `block_count`."""
    return Fields(gguf.metadata, gguf.name, f"{gguf.metadata['general.architecture']}.")


def dims_from_gguf(gguf: GgufView) -> Dims:
    """Read dimensions and special tokens.

    Raises:
        FormatError: A key is missing, has the wrong type (per-layer arrays included) or is out of range.
    """
    fields, tokenizer = architecture_fields(gguf), Fields(gguf.metadata, gguf.name, "tokenizer.ggml.")
    table = gguf.shape("token_embd.weight")
    if table is None or len(table) != 2 or not 1 <= table[0] <= MAX_VOCAB:
        raise FormatError(f"{gguf.name} has no usable token_embd.weight", why=f"its shape is {table}", fix="download the file again")
    hidden, n_heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    n_kv_heads = fields.integer("attention.head_count_kv", default=n_heads)
    head_dim = fields.integer("attention.key_length", default=max(1, hidden // n_heads))
    if fields.integer("attention.value_length", default=head_dim) != head_dim:
        raise fields.fail("attention.value_length", f"must equal attention.key_length {head_dim}")
    if n_heads % n_kv_heads or head_dim % 2:
        raise fields.fail("attention.head_count_kv", f"{n_kv_heads} must divide {n_heads} heads, and head size {head_dim} must be even")
    return Dims(
        n_layers=fields.integer("block_count", maximum=MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length", maximum=MAX_WIDTH),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        vocab_size=table[0],
        max_context_length=fields.integer("context_length", maximum=MAX_CONTEXT),
        tie_embeddings=gguf.shape("output.weight") is None,
        bos_token_id=tokenizer.optional_integer("bos_token_id", maximum=table[0] - 1),
        eos_token_ids=_stop_tokens(gguf.metadata, tokenizer, table[0]),
        pad_token_id=tokenizer.optional_integer("padding_token_id", maximum=table[0] - 1),
    )


def _stop_tokens(metadata: Any, tokenizer: Fields, vocab_size: int) -> tuple[int, ...]:
    ids = [tokenizer.optional_integer(key, maximum=vocab_size - 1) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and types is not None and len(types) == len(tokens):
        by_text = {tokens[i]: i for i in range(len(tokens)) if int(types[i]) == _CONTROL}
        ids += [by_text.get(text) for text in TURN_END_TOKENS]
    return tuple(dict.fromkeys(i for i in ids if i is not None))
