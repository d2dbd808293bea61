"""What LiteRT makes of each matrix of a checkpoint for recipes that need more than one rule for all: `keep`, single tensors, GPTQ.

Plain recipes are carried out by ai-edge-quantizer (litert_quantize). This module decides, from names, shapes and what the
source holds, which form each matrix gets, and what that comes to in bits: the same decision for the promise and for the file.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from converters.recipe import Recipe
from converters.rule import Activations, Algorithm, Granularity, Rule, TensorClass, tensor_class
from converters.stored_blocks import GROUP_SIZE

if TYPE_CHECKING:
    from converters.architectures.base import FloatArray
    from converters.calibration.found import Found
    from converters.calibration.matrix_rule import MatrixRule
    from converters.checkpoint import Checkpoint
    from converters.targets.litert_inject import Form, PlannedVector

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


def scales_channels(recipe: Recipe, model_type: str) -> bool:
    """Whether int8 rules are carried out with channel scales folded into the weights, found on the calibration texts.

    LiteRT's integer kernels also quantize activations, one scale a token. Gemma's have outliers that such a scale cannot
    hold: on Gemma 3 270M int8 as it is has a KL of 0.049 (docs/adr/0012).
    """
    is_plain_int8 = all(
        rule.bits == 8 and rule.algorithm is Algorithm.ROUND and rule.granularity is Granularity.CHANNEL and rule.is_symmetric
        for rule in recipe.all_rules()
    )
    return model_type.startswith("gemma") and is_plain_int8 and not is_planned(recipe)


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


def form_of(rule: Rule, kind: TensorClass, stored_kind: str | None, rows: int) -> Form:
    """The form of one matrix: `blocks` where codes of 4 bits are chosen or kept, `int8` for everything else.

    A table all of whose rows are among its first `int8_rows` is int8: there is no row left for blocks.

    Raises:
        ValueError: The source's codes are to be kept, but the source has floats.
    """
    if not rule.is_keep:
        return "blocks" if rule.bits == 4 and (rule.int8_rows or 0) < rows else "int8"
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
    if form_of(rule, kind, checkpoint.tensors.stored_kind(name), rows) == "int8":
        return rows * (columns * 8 + INT8_SCALE_BITS)
    group_size = rule.group_size or 32
    if columns % group_size:
        raise ValueError(f"group_size {group_size} does not divide in_features {columns}")
    n_groups = columns // group_size
    has_offsets = rule.is_keep or not rule.is_symmetric
    row = columns * 4 + n_groups * INT4_SCALE_BITS + (n_groups * 8 + INT8_SCALE_BITS if has_offsets else 0)
    n_int8 = rule.int8_rows or 0
    return (rows - n_int8) * row + n_int8 * (columns * 8 + INT8_SCALE_BITS)


def promise(checkpoint: Checkpoint, recipe: Recipe) -> float:
    """Bits per weight of a planned recipe on a checkpoint.

    Raises:
        UsageError: A rule does not fit a tensor; both are named.
    """

    def size(rule: Rule, name: str, shape: Sequence[int]) -> int:
        return bits_of(checkpoint, rule, name, shape)

    return recipe.promised_bits_per_weight(checkpoint.tensor_shapes(), is_tied=checkpoint.spec.tie_embeddings, bits_of=size)


def matrix_rules(checkpoint: Checkpoint, recipe: Recipe) -> dict[str, MatrixRule]:
    """What calibration is to make of each matrix, by Hugging Face name; a tied head is its table.

    Where GPTQ is asked for and the source's own codes have that form, they are taken: no error is less than none.
    """
    from converters.calibration.matrix_rule import MatrixRule

    rules = {}
    for name, shape, rule, kind in _matrices(checkpoint, recipe):
        stored = checkpoint.tensors.stored_kind(name)
        if _keeps(rule, kind, stored):
            rules[name] = MatrixRule("fixed")
        elif form_of(rule, kind, stored, shape[0]) == "int8":
            rules[name] = MatrixRule("int8")
        else:
            assert rule.bits is not None and rule.group_size is not None
            more = 0
            if recipe.promotion is not None and recipe.is_promotable(name, shape):
                more = bits_of(checkpoint, recipe.promotion.rule, name, shape) - bits_of(checkpoint, rule, name, shape)
            rules[name] = MatrixRule("gptq", rule.bits, rule.group_size, rule.is_symmetric, rule.int8_rows or 0, more)
    return rules


def promotion_budget_bits(checkpoint: Checkpoint, recipe: Recipe) -> float:
    """Bits a promotion may spend on this checkpoint, beyond what the rules take."""
    if recipe.promotion is None:
        return 0.0
    spec = checkpoint.spec
    return (recipe.promotion.bits_per_weight - promise(checkpoint, replace(recipe, promotion=None))) * spec.n_parameters


def write_plan(checkpoint: Checkpoint, recipe: Recipe, folder: Path, calibrated: Found | None = None) -> None:
    """Write the plan of a recipe for `litert_inject.inject`: what becomes of each matrix, with the codes that are kept or were chosen."""
    from converters.stored_blocks import StoredBlocks
    from converters.targets.litert_inject import PlanFolder, Planned, digest_of

    tensors, planned = checkpoint.tensors, []
    blocks: dict[str, StoredBlocks] = {}
    arrays, vectors = _scaled(checkpoint, calibrated)
    for name, shape, rule, kind in _matrices(checkpoint, recipe):
        stored_kind = tensors.stored_kind(name)
        form = form_of(rule, kind, stored_kind, shape[0])
        if calibrated is not None and name in calibrated.promoted:
            form = "int8"
        elif calibrated is not None and name in calibrated.codes:
            blocks[name] = calibrated.codes[name]
        elif form == "blocks":
            stored = tensors.stored(name) if _keeps(rule, kind, stored_kind) else None
            assert stored is not None, f"{name} ({stored_kind}) has no codes"
            blocks[name] = stored
        is_scaled = any(f"{name}.{part}" in arrays for part in ("rows", "columns"))
        n_int8 = rule.int8_rows or 0 if form == "blocks" else 0
        planned.append(Planned(name, digest_of(tensors.blocks(name)), form, kind is TensorClass.EMBEDDING, n_int8, is_scaled))
    PlanFolder(folder).write(planned, blocks, vectors=vectors, arrays=arrays)


def _scaled(checkpoint: Checkpoint, calibrated: Found | None) -> tuple[dict[str, FloatArray], list[PlannedVector]]:
    """What channel scales do to the graph: rows and columns of matrices, vectors of norms."""
    from converters.targets.litert_inject import PlannedVector, digest_of

    arrays: dict[str, FloatArray] = {}
    vectors = []
    for made_by, scales in ({} if calibrated is None else calibrated.scales).items():
        assert calibrated is not None
        arrays |= {f"{reader}.columns": scales for reader in calibrated.readers[made_by]}
        if len(checkpoint.tensors.shape(made_by)) == 1:
            vector = (checkpoint.tensors.load(made_by) + np.float32(checkpoint.spec.norm.weight_offset)).astype(np.float32)
            vectors.append(PlannedVector(made_by, digest_of([vector])))
            arrays[f"{made_by}.vector"] = vector / scales
        else:
            arrays[f"{made_by}.rows"] = np.reciprocal(scales)
    return arrays, vectors


def _keeps(rule: Rule, kind: TensorClass, stored_kind: str | None) -> bool:
    """Whether a matrix gets the source's own codes."""
    is_asked = rule.is_keep or (rule.algorithm is Algorithm.GPTQ and not rule.is_symmetric and rule.group_size == GROUP_SIZE)
    return is_asked and kind is TensorClass.LINEAR and stored_kind in KEPT_EXACTLY


def _matrices(checkpoint: Checkpoint, recipe: Recipe) -> Iterator[tuple[str, tuple[int, ...], Rule, TensorClass]]:
    """Every matrix with its rule and class; a tied head is left out, it is its table."""
    for name, shape in checkpoint.tensor_shapes().items():
        rule, kind = recipe.rule_for(name, shape), tensor_class(name, shape)
        if rule is not None and kind is not None and not (checkpoint.spec.tie_embeddings and kind is TensorClass.HEAD):
            yield name, shape, rule, kind


def kept(checkpoint: Checkpoint, recipe: Recipe) -> dict[str, dict[str, int]]:
    """For the manifest: how many matrices keep the source's codes exactly, and how many that should are rounded to int8, by type."""
    exact: Counter[str] = Counter()
    rounded: Counter[str] = Counter()
    for name, _, rule, kind in _matrices(checkpoint, recipe):
        stored = checkpoint.tensors.stored_kind(name)
        if stored is not None and _keeps(rule, kind, stored):
            exact[stored] += 1
        elif stored is not None and rule.is_keep:
            rounded[stored] += 1
    return {"exact": dict(exact), "rounded_to_int8": dict(rounded)}


def check(checkpoint: Checkpoint, recipe: Recipe) -> str:
    """Why a planned recipe cannot be carried out on this checkpoint; empty if it can. Names the tensor where there is one."""
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
