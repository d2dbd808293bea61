"""What LiteRT makes of each matrix of a checkpoint for recipes that need more than one rule for all: `keep`, single tensors, GPTQ.

Plain recipes are carried out by ai-edge-quantizer (litert_quantize). This module decides, from names, shapes and what the
source holds, which form each matrix gets, and what that comes to in bits: the same decision for the promise and for the file.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from converters.recipe import Recipe
from converters.rule import Activations, Algorithm, Granularity, Rule, TensorClass, tensor_class

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.targets.litert_inject import Form

KEPT_EXACTLY = ("Q4_0", "Q4_1", "Q4_K")
INT4_GROUP_SIZES = (32, 64, 128)
INT4_SCALE_BITS = 16
INT8_SCALE_BITS = 32


def is_planned(recipe: Recipe) -> bool:
    """Whether a recipe is carried out matrix by matrix, and not by the quantizer's own rules."""
    rules = recipe.all_rules()
    return bool(recipe.overrides or recipe.promotion) or any(
        rule.is_keep or rule.algorithm is Algorithm.GPTQ or rule.int8_rows or not rule.is_symmetric for rule in rules
    )


def refusal(rule: Rule, kind: TensorClass) -> str:
    """Why a matrix of this class cannot be given this rule in a planned recipe; empty if it can."""
    is_table = kind is not TensorClass.LINEAR
    if rule.is_keep:
        return ""
    if rule.is_float:
        return f"{rule.bits}-bit floats beside integers: the runtime packs every matrix it multiplies as integers"
    if rule.activations is not Activations.INT8_DYNAMIC:
        return "integer weights with float activations decode five times slower and are not packed by the runtime"
    if rule.bits == 8 and rule.granularity is Granularity.CHANNEL and rule.is_symmetric and rule.algorithm is Algorithm.ROUND:
        return ""
    if rule.bits != 4 or rule.granularity is not Granularity.BLOCKWISE or rule.group_size not in INT4_GROUP_SIZES:
        sizes = ", ".join(map(str, INT4_GROUP_SIZES))
        return f"LiteRT's kernels take 4 bits in groups of {sizes}, or symmetric int8 with one scale a row (round)"
    if rule.algorithm is not Algorithm.GPTQ:
        return f"4-bit codes chosen by {rule.algorithm}: a recipe with rules for single tensors takes gptq"
    if is_table and not rule.is_symmetric:
        return "a table's rows are looked up as they are, so their codes can have no offsets"
    return ""


def form_of(rule: Rule, kind: TensorClass, stored_kind: str | None) -> Form:
    """The form of one matrix: `blocks` where codes of 4 bits are chosen or kept, `int8` for everything else.

    Raises:
        ValueError: The source's codes are to be kept, but the source has floats.
    """
    if not rule.is_keep:
        return "blocks" if rule.bits == 4 else "int8"
    if stored_kind is None:
        raise ValueError("the source holds it in float, so there are no codes to keep")
    return "blocks" if kind is TensorClass.LINEAR and stored_kind in KEPT_EXACTLY else "int8"


def bits_of(checkpoint: Checkpoint, rule: Rule, name: str, shape: Sequence[int]) -> int:
    """Bits one matrix takes in the file: codes, group scales, row scales, offsets.

    Raises:
        ValueError: The rule does not fit the tensor.
    """
    kind = tensor_class(name, shape)
    assert kind is not None
    rows, columns = shape[0], math.prod(shape[1:])
    if form_of(rule, kind, checkpoint.tensors.stored_kind(name)) == "int8":
        return rows * (columns * 8 + INT8_SCALE_BITS)
    group_size = rule.group_size or 32
    if columns % group_size:
        raise ValueError(f"group_size {group_size} does not divide in_features {columns}")
    n_groups = columns // group_size
    has_offsets = rule.is_keep or not rule.is_symmetric
    row = columns * 4 + n_groups * INT4_SCALE_BITS + (n_groups * 8 + INT8_SCALE_BITS if has_offsets else 0)
    n_int8 = min(rule.int8_rows or 0, rows)
    return (rows - n_int8) * row + n_int8 * (columns * 8 + INT8_SCALE_BITS)


def promise(checkpoint: Checkpoint, recipe: Recipe) -> float:
    """Bits per weight of a planned recipe on a checkpoint.

    Raises:
        UsageError: A rule does not fit a tensor; both are named.
    """

    def size(rule: Rule, name: str, shape: Sequence[int]) -> int:
        return bits_of(checkpoint, rule, name, shape)

    return recipe.promised_bits_per_weight(checkpoint.tensor_shapes(), is_tied=checkpoint.spec.tie_embeddings, bits_of=size)


def write_plan(checkpoint: Checkpoint, recipe: Recipe, folder: Path) -> None:
    """Write the plan of a recipe for `litert_inject.inject`: what becomes of each matrix, with the codes that are kept."""
    from converters.targets.litert_inject import PlanFolder, Planned, digest_of

    tensors, planned, blocks = checkpoint.tensors, [], {}
    is_tied = checkpoint.spec.tie_embeddings
    for name, shape in checkpoint.tensor_shapes().items():
        rule, kind = recipe.rule_for(name, shape), tensor_class(name, shape)
        if rule is None or kind is None or (is_tied and kind is TensorClass.HEAD):
            continue
        form = form_of(rule, kind, tensors.stored_kind(name))
        if form == "blocks" and rule.is_keep:
            stored = tensors.stored(name)
            assert stored is not None, f"{name} is {tensors.stored_kind(name)}, yet its source gives no codes"
            blocks[name] = stored
        is_table = kind is TensorClass.EMBEDDING
        planned.append(Planned(name, digest_of(tensors.blocks(name)), form, is_table, rule.int8_rows or 0))
    PlanFolder(folder).write(planned, blocks)


def kept(checkpoint: Checkpoint, recipe: Recipe) -> dict[str, dict[str, int]]:
    """For the manifest: how many matrices keep the source's codes exactly, and how many are rounded to int8, by the source's type."""
    exact: Counter[str] = Counter()
    rounded: Counter[str] = Counter()
    for name, shape in checkpoint.tensor_shapes().items():
        rule, kind, stored = recipe.rule_for(name, shape), tensor_class(name, shape), checkpoint.tensors.stored_kind(name)
        if rule is not None and rule.is_keep and kind is not None and stored is not None:
            (exact if form_of(rule, kind, stored) == "blocks" else rounded)[stored] += 1
    return {"exact": dict(exact), "rounded_to_int8": dict(rounded)}


def check(checkpoint: Checkpoint, recipe: Recipe) -> str:
    """Why a planned recipe cannot be carried out on this checkpoint; empty if it can. Names the tensor where there is one."""
    if recipe.is_calibrated:
        return "codes chosen by calibration are not there for LiteRT yet"
    tensors, kept_kinds = checkpoint.tensors, set[str | None]()
    for name, shape in checkpoint.tensor_shapes().items():
        rule, kind = recipe.rule_for(name, shape), tensor_class(name, shape)
        if rule is None or kind is None:
            continue
        if why := refusal(rule, kind):
            return f"{name}: {why}"
        if rule.is_keep:
            kept_kinds.add(tensors.stored_kind(name))
    if kept_kinds and not kept_kinds & set(KEPT_EXACTLY):
        found = ", ".join(sorted(kind for kind in kept_kinds if kind)) or "floats"
        return f"nothing could be kept: LiteRT multiplies codes of {', '.join(KEPT_EXACTLY)} as they are, this source has {found}"
    for override in recipe.overrides:
        if not any(re.fullmatch(override.tensors, name) for name in checkpoint.tensor_shapes()):
            return f"no tensor of {checkpoint.name} is called {override.tensors!r}"
    return "" if recipe.promotion is None else refusal(recipe.promotion.rule, TensorClass.LINEAR)
