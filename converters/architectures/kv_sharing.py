"""Layers that take the keys and values of an earlier layer (Gemma 3n and 4): read and proven to have one to take from."""

from __future__ import annotations

from converters.architectures.fields import Fields
from converters.spec import LayerType


def kv_shared_layers_from_config(fields: Fields, layer_types: tuple[LayerType, ...], default: int) -> int:
    """`num_kv_shared_layers`: how many last layers keep no keys and values of their own.

    Raises:
        FormatError: Not a number in 0..n_layers-1, or a type of layer has none that keeps any.
    """
    key = "num_kv_shared_layers"
    n_shared = fields.integer(key, minimum=0, maximum=len(layer_types) - 1, default=default)
    kept = set(layer_types[: len(layer_types) - n_shared])
    orphans = sorted({layer_type for layer_type in layer_types if layer_type not in kept})
    if orphans:
        raise fields.fail(key, f"{n_shared} leaves no {orphans[0]} layer among the first {len(layer_types) - n_shared} to take from")
    return n_shared


def refuse_attention_bias(fields: Fields) -> None:
    """No published model of these families has biases, and no target here was checked with them.

    Raises:
        FormatError: config.json asks for them.
    """
    if fields.boolean("attention_bias", default=False):
        raise fields.fail("attention_bias", "is true; this family is read without attention biases")
