"""What nobody measured of Gemma 3n and Gemma 4 on LiteRT, and is refused for that reason alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from converters.recipe import Recipe
    from converters.spec import ModelSpec


def unmeasured(spec: ModelSpec, recipes: Sequence[Recipe]) -> str:
    """Why a model or recipe of these families is not written; empty if it was held against transformers."""
    if spec.has_keys_as_values:
        return "its full layers make values of the keys' projection (attention_k_eq_v), which was not held against transformers yet"
    if spec.altup is None and spec.per_layer_inputs is None:
        return ""
    quantized = next((recipe.name for recipe in recipes if not all(rule.is_float for rule in recipe.all_rules())), None)
    if quantized is None:
        return ""
    part = "AltUp's mixing matrices" if spec.altup is not None else "per-layer tables"
    return f"recipe {quantized} also rounds its {part}, and such a graph was not held against transformers yet; fp32 and fp16 are written"
