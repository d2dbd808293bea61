"""What nobody measured of Gemma 3n and Gemma 4 on LiteRT, and is refused for that reason alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from converters.targets import other_targets

if TYPE_CHECKING:
    from converters.recipe import Recipe
    from converters.spec import ModelSpec


class Unmeasured(NamedTuple):
    """Why something is not written, and what is."""

    why: str
    fix: str


def unmeasured(spec: ModelSpec, recipes: Sequence[Recipe]) -> Unmeasured | None:
    """Why a model or recipe of these families is not written; None if it was held against transformers."""
    elsewhere = other_targets("litert", spec.model_type)
    if spec.has_keys_as_values:
        why = "its full layers make values of the keys' projection (attention_k_eq_v), which was not held against transformers yet"
        return Unmeasured(why, elsewhere)
    if spec.altup is None and spec.per_layer_inputs is None:
        return None
    quantized = next((recipe.name for recipe in recipes if not all(rule.is_float for rule in recipe.all_rules())), None)
    if quantized is None:
        return None
    part = "AltUp's mixing matrices" if spec.altup is not None else "per-layer tables"
    why = f"recipe {quantized} also rounds its {part}, and such a graph was not held against transformers yet; fp32 and fp16 are written"
    return Unmeasured(why, f"use --recipe fp32 or fp16 for litert, or {elsewhere}")
