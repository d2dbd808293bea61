"""Recipes: how weights are quantized, as data. One TOML file each; the same name means the same thing for every target."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from converters.rule import Algorithm, Rule, TensorClass, tensor_class
from toolkit.errors import UsageError

RECIPES_DIR = Path(__file__).parent / "recipes"
VECTOR_BITS = 32
PROMISE_TOLERANCE = 0.10
SizeOf = Callable[[Rule, str, Sequence[int]], int]
_NAME = re.compile(
    r"(?P<keep>keep)"
    r"|fp(?P<float>16|32)"
    r"|int(?P<bits>[2-8])(?:-g(?P<group>\d+))?(?:-(?P<algorithm>[a-z]+))?"
    r"|mixed-(?P<bpw>\d+(?:\.\d+)?)bpw"
)


@dataclass(frozen=True)
class Override:
    """A rule for the tensors whose whole Hugging Face name a regular expression matches."""

    tensors: str
    rule: Rule


@dataclass(frozen=True)
class Promotion:
    """A better rule for the linears that few bits hurt most: as many of them as a size allows.

    Args:
        bits_per_weight: What the whole model may come to, every weight counted.
        rule: What a promoted linear gets instead of its own rule.
    """

    bits_per_weight: float
    rule: Rule


@dataclass(frozen=True)
class Recipe:
    """A named set of rules, one for each class of tensor, and the fidelity gates its bundles must pass.

    Args:
        name: Decodes to the rules: `keep`, `fp16`, `int8`, `int4-g32`, `int4-g32-gptq`, `mixed-5.0bpw`.
        description: One line for people.
        rules: A rule for every `TensorClass`.
        gates: Figure of `Fidelity` -> limit; empty means figures are reported and nothing is refused.
        origin: Where it was read, for error messages.
        overrides: Rules for single tensors, before those of their class; of several that match, the last one holds.
        promotion: What the most sensitive linears get instead; measured on the checkpoint, so a target must calibrate for it.
    """

    name: str
    description: str
    rules: Mapping[TensorClass, Rule]
    gates: Mapping[str, float]
    origin: str = ""
    overrides: tuple[Override, ...] = ()
    promotion: Promotion | None = None

    @property
    def is_keep(self) -> bool:
        """Whether every matrix keeps the source's own codes and scales."""
        return all(rule.is_keep for rule in self.all_rules())

    @property
    def is_calibrated(self) -> bool:
        """Whether carrying it out needs the model's activations on the calibration texts."""
        return self.promotion is not None or any(rule.algorithm is Algorithm.GPTQ for rule in self.all_rules())

    def all_rules(self) -> tuple[Rule, ...]:
        """The rules of the classes, then those of the overrides; without the promotion's."""
        return (*self.rules.values(), *(override.rule for override in self.overrides))

    def as_dict(self) -> dict[str, Any]:
        """The recipe as the manifest stores it: name, rules by tensor class, overrides and promotion where there are any, gates."""
        return {"name": self.name, **self._decisive(), "gates": dict(self.gates)}

    def digest(self) -> str:
        """SHA-256 of what decides the bytes written: rules, overrides and promotion, neither name nor gates."""
        decisive = self._decisive()
        decisive = decisive["rules"] if len(decisive) == 1 else decisive
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def _decisive(self) -> dict[str, Any]:
        decisive: dict[str, Any] = {"rules": {str(kind): _fields(rule) for kind, rule in self.rules.items()}}
        if self.overrides:
            decisive["overrides"] = [{"tensors": override.tensors, **_fields(override.rule)} for override in self.overrides]
        if self.promotion is not None:
            decisive["promotion"] = {"bits_per_weight": self.promotion.bits_per_weight, **_fields(self.promotion.rule)}
        return decisive

    def with_max_kl(self, max_kl: float) -> Recipe:
        """The same recipe whose mean KL divergence must stay at or under `max_kl` (nats per token)."""
        return replace(self, gates={**self.gates, "kl_mean": max_kl})

    def rule_for(self, name: str, shape: Sequence[int]) -> Rule | None:
        """The rule of one tensor; None when it stays in float whatever the recipe says."""
        kind = tensor_class(name, shape)
        if kind is None:
            return None
        return next((each.rule for each in reversed(self.overrides) if re.fullmatch(each.tensors, name)), self.rules[kind])

    def promised_bits_per_weight(
        self, shapes: Mapping[str, Sequence[int]], *, is_tied: bool, bits_of: SizeOf = lambda rule, name, shape: rule.stored_bits(shape)
    ) -> float:
        """Bits per parameter the rules come to on these tensors, scales included, vectors at float32.

        With a promotion it is the promotion's own figure, or what all linears promoted come to if that is less.

        Args:
            shapes: Hugging Face tensor name -> (out_features, in_features) or (features,).
            is_tied: Whether the head is the embedding table, stored and counted once.
            bits_of: What a tensor takes by a rule where a format does not store it as `Rule.stored_bits` says, or keeps the
                source's codes. Raises ValueError for a rule that does not fit the tensor.

        Raises:
            UsageError: A rule does not fit a tensor (names the tensor), or a promotion allows less than the rules need.
        """
        counted = {name: shape for name, shape in shapes.items() if not (is_tied and tensor_class(name, shape) is TensorClass.HEAD)}
        n_weights = sum(math.prod(shape) for shape in counted.values())
        base = sum(self._bits(self.rule_for(name, shape), name, shape, bits_of) for name, shape in counted.items()) / n_weights
        if self.promotion is None:
            return base
        if self.promotion.bits_per_weight < base:
            raise UsageError(
                f"recipe {self.name} cannot be carried out on this checkpoint",
                why=f"it allows {self.promotion.bits_per_weight} bits a weight, its rules need {base:.3f} before anything is promoted",
                fix="raise promotion.bits_per_weight, or lower int8_rows",
            )
        most = sum(self._bits(self._best_rule(name, shape), name, shape, bits_of) for name, shape in counted.items()) / n_weights
        return min(most, self.promotion.bits_per_weight)

    def _best_rule(self, name: str, shape: Sequence[int]) -> Rule | None:
        return self.promotion.rule if self.promotion and self.is_promotable(name, shape) else self.rule_for(name, shape)

    def is_promotable(self, name: str, shape: Sequence[int]) -> bool:
        """Whether a promotion may choose this tensor: linears that no override speaks of."""
        is_spoken_of = any(re.fullmatch(each.tensors, name) for each in self.overrides)
        return self.promotion is not None and tensor_class(name, shape) is TensorClass.LINEAR and not is_spoken_of

    def _bits(self, rule: Rule | None, name: str, shape: Sequence[int], bits_of: SizeOf) -> int:
        try:
            return math.prod(shape) * VECTOR_BITS if rule is None else bits_of(rule, name, shape)
        except ValueError as error:
            raise UsageError(
                f"recipe {self.name} does not fit {name}",
                why=f"{error} (shape {tuple(shape)})",
                fix="use int8, whose groups are whole rows",
            ) from error

    def require_one_table(self, *, is_tied: bool) -> None:
        """Refuse to store a tied table twice, once as embedding and once as head.

        Raises:
            UsageError: The embedding is the head, yet the recipe has two different rules for it.
        """
        table, head = (self.rule_for(name, (1, 1)) for name in ("model.embed_tokens.weight", "lm_head.weight"))
        if is_tied and table != head:
            raise UsageError(
                f"recipe {self.name} would store the embedding table twice",
                why="the head of this checkpoint is its embedding table; the recipe has different [rules.embedding] and [rules.head]",
                fix="give both the same rule",
            )

    def breaks_promise(self, promised: float, measured: float) -> bool:
        """Whether a written file's bits per weight miss the promise by more than 10 %, so the recipe was not what was written."""
        return not abs(measured - promised) <= PROMISE_TOLERANCE * promised


def _fields(rule: Rule) -> dict[str, Any]:
    return {key: value for key, value in asdict(rule).items() if value is not None}


def known_recipes() -> list[str]:
    """Names of the recipes that come with the project, shortest first."""
    return sorted((path.stem for path in RECIPES_DIR.glob("*.toml")), key=lambda name: (len(name), name))


def load_recipe(name_or_path: str) -> Recipe:
    """Read a recipe by name, or from a path ending in `.toml`.

    Raises:
        UsageError: No such recipe (the known ones are listed), or a value in it is wrong (file, line and field are named).
    """
    from converters.recipe_file import read_recipe

    if name_or_path.endswith(".toml"):
        return read_recipe(Path(name_or_path))
    if name_or_path not in known_recipes():
        raise UsageError(
            f"there is no recipe {name_or_path!r}",
            why=f"known recipes are {', '.join(known_recipes())}",
            fix="give one of them to --recipe, or the path of a .toml file",
        )
    return read_recipe(RECIPES_DIR / f"{name_or_path}.toml")


def undecodable(recipe: Recipe) -> str:
    """Why a recipe's name does not say what its rules do; empty when it does. A name does not tell symmetry and int8_rows."""
    match = _NAME.fullmatch(recipe.name)
    if match is None:
        return "a name reads keep, fp16, fp32, int<bits>[-g<group_size>][-<algorithm>] or mixed-<bits>bpw"
    if match["bpw"]:
        return _misnamed_mix(recipe, float(match["bpw"]))
    if recipe.overrides or recipe.promotion:
        return "tensors with rules of their own make it a mix: mixed-<bits>bpw"
    if match["keep"]:
        return "" if recipe.is_keep else "keep, yet a class has a rule of its own"
    for kind, rule in recipe.rules.items():
        said = {"bits": int(match["float"] or match["bits"]), "group_size": int(match["group"]) if match["group"] else None}
        done = {"bits": rule.bits, "group_size": rule.group_size}
        if said != done:
            return f"the name says {said}, [rules.{kind}] does {done}"
    wanted = Algorithm.CAST if match["float"] else match["algorithm"] or Algorithm.ROUND
    if recipe.rules[TensorClass.LINEAR].algorithm != wanted:
        return f"the name says algorithm {wanted}, [rules.linear] does {recipe.rules[TensorClass.LINEAR].algorithm}"
    return ""


def _misnamed_mix(recipe: Recipe, bits_per_weight: float) -> str:
    if recipe.promotion is not None and recipe.promotion.bits_per_weight != bits_per_weight:
        return f"the name says {bits_per_weight} bits a weight, [promotion] allows {recipe.promotion.bits_per_weight}"
    is_mixed = recipe.promotion is not None or len(set(recipe.all_rules())) > 1
    return "" if is_mixed else "mixed, yet all classes have one rule"
