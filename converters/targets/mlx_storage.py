"""How each tensor of a checkpoint is stored in an MLX bundle, decided from shapes alone before anything is read."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from converters.quantize.affine import BITS, GROUP_SIZES, require_affine
from converters.rule import Algorithm, Granularity, Rule, TensorClass, tensor_class
from converters.safetensors_writer import WeightDtype
from converters.stored_blocks import BLOCK_BITS, GROUP_SIZE
from toolkit.errors import UsageError

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.recipe import Recipe
    from converters.spec import ModelSpec

DTYPE_BITS: dict[WeightDtype, int] = {"float32": 32, "float16": 16, "bfloat16": 16}
# A recipe whose scales belong to whole rows gets the larger of these that divides the row: MLX has no longer groups.
_ROW_GROUP_SIZES = (64, 32)
# Q4_K's scales and offsets are products of two numbers, too long for 16 bits.
_NEEDS_FLOAT32 = ("Q4_K",)


@dataclass(frozen=True)
class Storage:
    """How one tensor is stored.

    Args:
        dtype: Of the tensor itself if it stays in float, else of its scales and biases.
        bits: Bits per code; None for floats.
        group_size: Weights that share a scale and a bias; None for floats.
        kept_kind: The source's own type, if its codes are kept.
        is_exact: Whether a float must come out as it went in, because the recipe keeps what the source has.
    """

    dtype: WeightDtype
    bits: int | None = None
    group_size: int | None = None
    kept_kind: str | None = None
    is_exact: bool = False

    def stored_bits(self, shape: Sequence[int]) -> int:
        """Bits on disk of a tensor of this shape: codes, and a scale and a bias for each group."""
        n_weights, width = math.prod(shape), DTYPE_BITS[self.dtype]
        if self.bits is None or self.group_size is None:
            return n_weights * width
        return n_weights * self.bits + n_weights // self.group_size * 2 * width

    def __str__(self) -> str:
        if self.bits is None:
            return self.dtype
        kept = f", the source's own {self.kept_kind}" if self.kept_kind else ""
        return f"int{self.bits} affine, groups of {self.group_size}, {self.dtype} scale and bias{kept}"


def plan_storage(checkpoint: Checkpoint, recipe: Recipe) -> dict[str, Storage]:
    """The storage of every tensor, by Hugging Face name in writing order; a tied head is left out.

    Raises:
        UsageError: A rule MLX cannot carry out, or one that does not fit a tensor; both are named.
    """
    dtype = float_dtype(checkpoint.spec, recipe)
    if recipe.promotion is not None:
        raise _not_for_mlx(recipe, "promotion", "MLX bundles are written without calibration", "give each class its own rule")
    plan: dict[str, Storage] = {}
    unkept: dict[str, list[str]] = {}
    for name, shape in checkpoint.tensor_shapes().items():
        if checkpoint.spec.tie_embeddings and tensor_class(name, shape) is TensorClass.HEAD:
            continue
        rule = recipe.rule_for(name, shape)
        if rule is not None and rule.is_keep:
            kind = checkpoint.tensors.stored_kind(name)
            plan[name] = _kept(kind, dtype)
            if kind is not None and plan[name].bits is None:
                unkept.setdefault(kind, []).append(name)
        else:
            plan[name] = Storage(dtype) if rule is None else _by_rule(rule, recipe, name, shape, dtype)
    _require_kept(checkpoint, recipe, plan, unkept)
    return plan


def bits_per_weight(checkpoint: Checkpoint, plan: dict[str, Storage]) -> float:
    """Bits on disk over parameters."""
    shapes = checkpoint.tensor_shapes()
    return sum(storage.stored_bits(shapes[name]) for name, storage in plan.items()) / sum(math.prod(shapes[name]) for name in plan)


def float_dtype(spec: ModelSpec, recipe: Recipe) -> WeightDtype:
    """The one type of a bundle's floats, which is also what mlx_lm computes in: mixing two would compute in float32.

    What the recipe casts to, float16 for kept codes (GGUF's scales are float16). Else float16, which has three more bits
    than bfloat16; but bfloat16 for Gemma, whose activations leave float16's range.
    """
    rules = recipe.all_rules()
    if any(rule.bits == 32 for rule in rules):
        return "float32"
    if any(rule.bits == 16 or rule.is_keep for rule in rules):
        return "float16"
    return "bfloat16" if spec.model_type.startswith("gemma") else "float16"


def _kept(kind: str | None, dtype: WeightDtype) -> Storage:
    """Kept codes; floats (to be compared with what they were) for a tensor that has none or none that fit."""
    if kind not in BLOCK_BITS or (kind in _NEEDS_FLOAT32 and dtype != "float32"):
        return Storage(dtype, is_exact=True)
    return Storage(dtype, BLOCK_BITS[kind], GROUP_SIZE, kept_kind=kind)


def _require_kept(checkpoint: Checkpoint, recipe: Recipe, plan: dict[str, Storage], unkept: dict[str, list[str]]) -> None:
    """Refuse to keep what does not fit, and to keep where there is nothing to keep."""
    if unkept:
        found = ", ".join(f"{len(names)} {'tensor is' if len(names) == 1 else 'tensors are'} {kind}" for kind, names in unkept.items())
        kind, first = next((kind, names[0]) for kind, names in unkept.items())
        fits = ", ".join(name for name in BLOCK_BITS if name not in _NEEDS_FLOAT32)
        raise UsageError(
            f"recipe {recipe.name} cannot keep the codes of {checkpoint.name} in MLX",
            why=f"{found} (first {first}, {kind}); with 16-bit scales MLX holds {fits} without loss",
            fix="quantize it again with --recipe int8, or convert a source of those types",
        )
    asked = any(rule.is_keep for rule in recipe.all_rules())
    if asked and not any(storage.kept_kind for storage in plan.values()):
        raise UsageError(
            f"recipe {recipe.name} finds nothing to keep in {checkpoint.name}",
            why=f"none of its tensors the recipe keeps is quantized; its weights are {checkpoint.quantization.name}",
            fix="use --recipe fp16, int8 or int4-g32",
        )


def _by_rule(rule: Rule, recipe: Recipe, name: str, shape: Sequence[int], dtype: WeightDtype) -> Storage:
    where = _where(recipe, name, shape)
    if rule.int8_rows:
        raise _not_for_mlx(recipe, where, "a tensor in MLX has one width for all its rows, int8_rows asks for two", "remove int8_rows")
    if rule.algorithm not in (Algorithm.CAST, Algorithm.ROUND):
        why = f"algorithm {rule.algorithm} has no counterpart: mlx_lm rotates nothing, and nothing is calibrated for it"
        raise _not_for_mlx(recipe, where, why, "use int8 or int4-g32")
    if rule.is_float:
        return Storage("float32" if rule.bits == 32 else "float16")
    assert rule.bits is not None
    try:
        group_size = _group_size(rule, shape)
        require_affine(rule.bits, group_size, shape[-1])
    except ValueError as error:
        bits, groups = ", ".join(map(str, BITS)), ", ".join(map(str, GROUP_SIZES))
        raise UsageError(
            f"recipe {recipe.name} does not fit {name} in MLX",
            why=f"[{where}] {error} (shape {tuple(shape)})",
            fix=f"MLX has {bits} bits in groups of {groups}: change that rule, or cast that tensor to 16 bits with [[overrides]]",
        ) from error
    return Storage(dtype, rule.bits, group_size)


def _group_size(rule: Rule, shape: Sequence[int]) -> int:
    if rule.granularity is Granularity.BLOCKWISE:
        assert rule.group_size is not None
        return rule.group_size
    return next((size for size in _ROW_GROUP_SIZES if shape[-1] % size == 0), _ROW_GROUP_SIZES[-1])


def _where(recipe: Recipe, name: str, shape: Sequence[int]) -> str:
    """The recipe's table that decides about a tensor."""
    matching = [index for index, override in enumerate(recipe.overrides) if re.fullmatch(override.tensors, name)]
    return f"overrides.{matching[-1]}" if matching else f"rules.{tensor_class(name, shape)}"


def _not_for_mlx(recipe: Recipe, where: str, why: str, fix: str) -> UsageError:
    return UsageError(f"recipe {recipe.name} cannot be written for MLX", why=f"[{where}] {why}", fix=fix)


def describe(checkpoint: Checkpoint, plan: dict[str, Storage]) -> dict[str, list[str]]:
    """What became of each class of tensor, commonest first; vectors under `vectors`."""
    shapes = checkpoint.tensor_shapes()
    counts: dict[str, Counter[str]] = {}
    for name, storage in plan.items():
        counts.setdefault(str(tensor_class(name, shapes[name]) or "vectors"), Counter())[str(storage)] += 1
    return {kind: [text for text, _ in found.most_common()] for kind, found in counts.items()}
