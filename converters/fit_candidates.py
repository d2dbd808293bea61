"""Which recipes `--fit` tries for a target: those that come with the project, and further ones made to measure for the size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from converters.recipe import Promotion, Recipe, known_recipes, load_recipe
from converters.rule import TensorClass
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.targets.base import ConvertOptions, Target

MLX_BITS = (2, 3, 5, 6)  # widths mlx_lm multiplies beside those that recipes of the project have
# Rows of the table at 8 bits, by the bits a weight that there are: frequent tokens first, linears with what is left.
INT8_ROWS = ((5.75, 32768), (4.9, 16384), (0.0, 8192))
MIX_STEP = 0.05


@dataclass(frozen=True)
class Candidate:
    """One recipe on one checkpoint.

    Args:
        recipe: Without gates: the search compares figures, it refuses none.
        bits_per_weight: What the target promises.
        weight_bytes: What that comes to.
    """

    recipe: Recipe
    bits_per_weight: float
    weight_bytes: int


def candidates(target: Target, checkpoint: Checkpoint, recipes: Sequence[Recipe], options: ConvertOptions) -> list[Candidate]:
    """The recipes that a target takes for a checkpoint, smallest first; of two that come to the same codes, the first named.

    Raises:
        ToolkitError: It takes none; the error is that of the first.
    """
    found: dict[str, Candidate] = {}
    refused: list[ToolkitError] = []
    for recipe in recipes:
        try:
            found.setdefault(recipe.digest(), _candidate(target, checkpoint, recipe, options))
        except ToolkitError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return sorted(found.values(), key=lambda each: each.weight_bytes)


def project_recipes(target: str) -> list[Recipe]:
    """Every recipe that could be tried for a target, whatever the size."""
    recipes = [load_recipe(name) for name in known_recipes()]
    if target == "mlx":
        like = load_recipe("int4-g32")
        recipes += [_at_bits(like, bits) for bits in MLX_BITS]
    return recipes


def made_to_measure(
    target: Target, checkpoint: Checkpoint, options: ConvertOptions, weight_bytes: int, taken: Sequence[Candidate]
) -> list[Candidate]:
    """Recipes of a target's own whose weights come to at most `weight_bytes`, and to more than any of `taken` that does."""
    make = _MAKERS.get(target.name)
    if make is None:
        return []
    bits = weight_bytes * 8 / checkpoint.spec.n_parameters
    least = max((each.bits_per_weight for each in taken if each.weight_bytes <= weight_bytes), default=0.0)
    bits = math.floor(bits / MIX_STEP) * MIX_STEP
    if bits < least + MIX_STEP:
        return []
    try:
        recipe = make(round(bits, 2))
        made = _candidate(target, checkpoint, recipe, options)
    except ToolkitError:  # its rules need more than there is, or the target has another reason
        return []
    # Where the source's own codes are kept there is nothing to promote: the mix would be a file that is there already.
    return [made] if made.bits_per_weight > bits - 2 * MIX_STEP else []


def _candidate(target: Target, checkpoint: Checkpoint, recipe: Recipe, options: ConvertOptions) -> Candidate:
    recipe = replace(recipe, gates={})
    recipe.require_one_table(is_tied=checkpoint.spec.tie_embeddings)
    target.check(checkpoint, [recipe], options)
    bits = target.promise(checkpoint, recipe)
    return Candidate(recipe, bits, math.ceil(bits * checkpoint.spec.n_parameters / 8))


def _at_bits(like: Recipe, bits: int) -> Recipe:
    rules = {kind: replace(rule, bits=bits) for kind, rule in like.rules.items()}
    group_size = like.rules[TensorClass.LINEAR].group_size
    return replace(
        like, name=f"int{bits}-g{group_size}", description=f"{bits}-bit weights, one scale for {group_size} of them.", rules=rules
    )


def _litert_mix(bits_per_weight: float) -> Recipe:
    """4-bit codes chosen on calibration texts, and 8 bits for what needs them most, up to a size."""
    like = load_recipe("int4-g32-gptq")
    rows = next(rows for least, rows in INT8_ROWS if bits_per_weight >= least)
    rules = {kind: rule if kind is TensorClass.LINEAR else replace(rule, int8_rows=rows) for kind, rule in like.rules.items()}
    promoted = load_recipe("int8").rules[TensorClass.LINEAR]
    return replace(
        like,
        name=f"mixed-{bits_per_weight:g}bpw",
        description=f"{bits_per_weight:g} bits a weight: 4-bit codes chosen on calibration texts, 8 bits where they matter most.",
        rules=rules,
        promotion=Promotion(bits_per_weight, promoted),
    )


_MAKERS: dict[str, Callable[[float], Recipe]] = {"litert": _litert_mix}
