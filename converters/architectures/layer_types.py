"""Which layers attend to everything and which only to a window."""

from __future__ import annotations

import numpy as np

from converters.architectures.fields import Fields
from converters.architectures.rope import HF_LAYER_TYPES
from converters.spec import LayerType


def all_full(n_layers: int) -> tuple[LayerType, ...]:
    """Every layer attends to everything."""
    return sliding_pattern(n_layers, 1)


def sliding_pattern(n_layers: int, period: int) -> tuple[LayerType, ...]:
    """Every `period`-th layer is full, the others slide: with 6, layers 5, 11, 17, ... counted from 0."""
    return tuple("full" if (layer_index + 1) % period == 0 else "sliding" for layer_index in range(n_layers))


def layer_types_from_config(fields: Fields, default: tuple[LayerType, ...]) -> tuple[LayerType, ...]:
    """`layer_types` of a config if it lists them, else the family's rule."""
    if "layer_types" not in fields:
        return default
    listed = fields.data["layer_types"]
    by_name = {name: layer_type for layer_type, name in HF_LAYER_TYPES.items()}
    if not isinstance(listed, list) or len(listed) != len(default):
        raise fields.fail("layer_types", f"must list {len(default)} layers")
    for name in listed:
        if not isinstance(name, str) or name not in by_name:
            raise fields.fail("layer_types", f"knows {', '.join(by_name)}, found {name!r}")
    return tuple(by_name[name] for name in listed)


def layer_types_from_gguf(fields: Fields, default: tuple[LayerType, ...]) -> tuple[LayerType, ...]:
    """`attention.sliding_window_pattern` of a GGUF file: a period, or one truth value a layer; the family's rule if absent."""
    key = "attention.sliding_window_pattern"
    if key not in fields or all(layer_type == "full" for layer_type in default):
        return default
    pattern = fields.data[fields.prefix + key]
    if not isinstance(pattern, np.ndarray):
        return sliding_pattern(len(default), fields.integer(key))
    if pattern.shape != (len(default),):
        raise fields.fail(key, f"must have one value for each of {len(default)} layers, found {pattern.shape}")
    return tuple("sliding" if slides else "full" for slides in pattern.tolist())


def layer_types_to_config(layer_types: tuple[LayerType, ...]) -> list[str]:
    """The names transformers uses."""
    return [HF_LAYER_TYPES[layer_type] for layer_type in layer_types]
