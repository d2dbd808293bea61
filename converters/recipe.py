"""Recipes: how weights are quantized, as data. One TOML file each; the same name means the same thing for every target."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from converters.rule import Algorithm, Rule, TensorClass, tensor_class
from toolkit.errors import UsageError

RECIPES_DIR = Path(__file__).parent / "recipes"
VECTOR_BITS = 32
PROMISE_TOLERANCE = 0.10
_NAME = re.compile(
    r"fp(?P<float>16|32)"
    r"|int(?P<bits>[2-8])(?:-g(?P<group>\d+))?(?:-(?P<algorithm>[a-z]+))?"
    r"|mixed-(?P<bpw>\d+(?:\.\d+)?)bpw"
)


@dataclass(frozen=True)
class Recipe:
    """A named set of rules, one for each class of tensor, and the fidelity gates its bundles must pass.

    Args:
        name: Decodes to the rules: `fp16`, `int8`, `int4-g32`, `int8-hadamard`, `mixed-4.5bpw`.
        description: One line for people.
        rules: A rule for every `TensorClass`.
        gates: Figure of `Fidelity` -> limit; empty means figures are reported and nothing is refused.
        origin: Where it was read, for error messages.
    """

    name: str
    description: str
    rules: Mapping[TensorClass, Rule]
    gates: Mapping[str, float]
    origin: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The recipe as the manifest stores it: name, rules by tensor class, gates."""
        rules = {str(kind): {key: value for key, value in asdict(rule).items() if value is not None} for kind, rule in self.rules.items()}
        return {"name": self.name, "rules": rules, "gates": dict(self.gates)}

    def digest(self) -> str:
        """SHA-256 of what decides the bytes written: the rules, neither name nor gates."""
        return hashlib.sha256(json.dumps(self.as_dict()["rules"], sort_keys=True).encode()).hexdigest()

    def with_max_kl(self, max_kl: float) -> Recipe:
        """The same recipe whose mean KL divergence must stay at or under `max_kl` (nats per token)."""
        return replace(self, gates={**self.gates, "kl_mean": max_kl})

    def rule_for(self, name: str, shape: Sequence[int]) -> Rule | None:
        """The rule of one tensor; None when it stays in float whatever the recipe says."""
        kind = tensor_class(name, shape)
        return None if kind is None else self.rules[kind]

    def promised_bits_per_weight(self, shapes: Mapping[str, Sequence[int]], *, is_tied: bool) -> float:
        """Bits per parameter the rules come to on these tensors, scales included, vectors at float32.

        Args:
            shapes: Hugging Face tensor name -> (out_features, in_features) or (features,).
            is_tied: Whether the head is the embedding table, stored and counted once.

        Raises:
            UsageError: A group_size does not divide a tensor's input axis; names the tensor.
        """
        n_weights = n_bits = 0
        for name, shape in shapes.items():
            if is_tied and tensor_class(name, shape) is TensorClass.HEAD:
                continue
            rule = self.rule_for(name, shape)
            n_weights += math.prod(shape)
            try:
                n_bits += math.prod(shape) * VECTOR_BITS if rule is None else rule.stored_bits(shape)
            except ValueError as error:
                raise UsageError(
                    f"recipe {self.name} does not fit {name}",
                    why=f"{error} (shape {tuple(shape)})",
                    fix="use int8, whose groups are whole rows",
                ) from error
        return n_bits / n_weights

    def require_one_table(self, *, is_tied: bool) -> None:
        """Refuse to store a tied table twice, once as embedding and once as head.

        Raises:
            UsageError: The embedding is the head, yet the recipe has two different rules for it.
        """
        if is_tied and self.rules[TensorClass.EMBEDDING] != self.rules[TensorClass.HEAD]:
            raise UsageError(
                f"recipe {self.name} would store the embedding table twice",
                why="the head of this checkpoint is its embedding table; the recipe has different [rules.embedding] and [rules.head]",
                fix="give both the same rule",
            )

    def breaks_promise(self, promised: float, measured: float) -> bool:
        """Whether a written file's bits per weight miss the promise by more than 10 %, so the recipe was not what was written."""
        return not abs(measured - promised) <= PROMISE_TOLERANCE * promised


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


def undecodable(name: str, rules: Mapping[TensorClass, Rule]) -> str:
    """Why a name does not say what the rules do; empty when it does."""
    match = _NAME.fullmatch(name)
    if match is None:
        return "a name reads fp16, fp32, int<bits>[-g<group_size>][-<algorithm>] or mixed-<bits>bpw"
    if match["bpw"]:
        return "" if len(set(rules.values())) > 1 else "mixed, yet all classes have one rule"
    for kind, rule in rules.items():
        said = {"bits": int(match["float"] or match["bits"]), "group_size": int(match["group"]) if match["group"] else None}
        done = {"bits": rule.bits, "group_size": rule.group_size}
        if said != done:
            return f"the name says {said}, [rules.{kind}] does {done}"
    wanted = Algorithm.CAST if match["float"] else match["algorithm"] or Algorithm.ROUND
    if rules[TensorClass.LINEAR].algorithm != wanted:
        return f"the name says algorithm {wanted}, [rules.linear] does {rules[TensorClass.LINEAR].algorithm}"
    return ""
