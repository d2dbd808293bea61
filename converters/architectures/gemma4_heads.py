"""The heads of Gemma 4's full layers, in both spellings: the published `global_head_dim`, and transformers 5's `per_layer_config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from converters.architectures.fields import Fields
from converters.spec import LayerType
from toolkit.errors import UnsupportedModelError

DEFAULT_HEAD_DIM = 512


class FullHeads(NamedTuple):
    """Heads of full layers: their width, how many have keys and values, and whether values are made of the keys' projection."""

    head_dim: int
    n_kv_heads: int
    has_keys_as_values: bool


def full_heads(fields: Fields, layer_types: tuple[LayerType, ...], n_heads: int, head_dim: int, n_kv_heads: int) -> FullHeads:
    """Read the heads of full layers; sliding ones have `head_dim` and `n_kv_heads`.

    Raises:
        FormatError: A key is wrong.
        UnsupportedModelError: Layers of one type differ among each other.
    """
    is_k_eq_v = fields.boolean("attention_k_eq_v", default=False)
    if "per_layer_config" in fields:
        wide, n_full = _listed(fields, layer_types, head_dim, n_kv_heads)
    else:
        wide = fields.integer("global_head_dim", default=DEFAULT_HEAD_DIM)
        # transformers and mlx-lm count the keys' heads of full layers apart only where these make the values too
        n_full = fields.integer("num_global_key_value_heads", default=n_kv_heads) if is_k_eq_v else n_kv_heads
    if n_full != n_kv_heads and not is_k_eq_v:
        raise _differs(f"full layers have {n_full} key heads, sliding ones {n_kv_heads}, and attention_k_eq_v is false")
    if wide % 2 or n_heads % n_full:
        raise fields.fail("global_head_dim", f"{wide} must be even, and {n_full} key heads must divide {n_heads} heads")
    return FullHeads(wide, n_full, is_k_eq_v)


def _listed(fields: Fields, layer_types: tuple[LayerType, ...], head_dim: int, n_kv_heads: int) -> tuple[int, int]:
    """The one pair of numbers of all full layers in `per_layer_config`, whose keys are layer indices."""
    listed = _by_index(fields)
    found: dict[LayerType, set[tuple[int, int]]] = {}
    for layer_index, layer_type in enumerate(layer_types):
        entry = Fields(listed.get(layer_index, {}), f"{fields.origin} (per_layer_config.{layer_index})")
        unknown = sorted(set(entry.data) - {"head_dim", "num_key_value_heads"})
        if unknown:
            raise _differs(f"layer {layer_index} has a {unknown[0]} of its own")
        pair = entry.integer("head_dim", default=head_dim), entry.integer("num_key_value_heads", default=n_kv_heads)
        found.setdefault(layer_type, set()).add(pair)
    for layer_type, pairs in found.items():
        if len(pairs) > 1 or (layer_type == "sliding" and pairs != {(head_dim, n_kv_heads)}):
            raise _differs(f"its {layer_type} layers have {' and '.join(f'{n} heads of {width}' for width, n in sorted(pairs))}")
    return found["full"].pop()


def _by_index(fields: Fields) -> dict[int, Mapping[str, Any]]:
    """`per_layer_config` by layer index; transformers pads the indices with zeros (`05`)."""
    result: dict[int, Mapping[str, Any]] = {}
    for key, value in fields.mapping("per_layer_config").items():
        if not str(key).isdecimal() or not isinstance(value, Mapping):
            raise fields.fail("per_layer_config", f"must hold an object for each layer index, found {str(key)[:20]}: {str(value)[:40]}")
        result[int(str(key))] = value
    return result


def _differs(why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        "this Gemma 4 has layers that differ in another way than the published ones",
        why=why,
        fix="use a published Gemma 4; one head size for full layers and one for sliding layers can be converted",
    )
