"""The fidelity gates: which figure must stay on which side of which limit, and the verdict that follows."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from toolkit.manifest import Fidelity


@dataclass(frozen=True)
class Gate:
    """A figure of `Fidelity` and the comparison with its limit that must hold."""

    holds: Callable[[float, float], bool]
    symbol: str


GATES: dict[str, Gate] = {
    "kl_mean": Gate(operator.le, "<="),
    "kl_p99": Gate(operator.le, "<="),
    "max_abs_logit_error": Gate(operator.le, "<="),
    "top1_agreement": Gate(operator.ge, ">="),
    "perplexity_ratio": Gate(operator.le, "<="),
    "greedy_tokens_equal": Gate(operator.ge, ">="),
    "word_error_rate_increase": Gate(operator.le, "<="),
}


# What a quantized speech model may lose: two words of a hundred more than its checkpoint gets wrong.
SPEECH_GATES = {"word_error_rate_increase": 0.02}


def broken_gates(figures: Fidelity, gates: Mapping[str, float]) -> list[str]:
    """The gates that do not hold, each as `kl_mean 0.047 must be <= 0.03`. A figure that is not finite holds nothing."""
    broken = []
    for name, limit in gates.items():
        figure = float(getattr(figures, name))
        if not math.isfinite(figure) or not GATES[name].holds(figure, limit):
            broken.append(f"{name} {figure:.4g} must be {GATES[name].symbol} {limit:.4g}")
    return broken


def verdict(figures: Fidelity, gates: Mapping[str, float]) -> str:
    """`pass` or `fail` by the gates; `reported` when there are none (yet `fail` when the KL itself is not finite)."""
    if not math.isfinite(figures.kl_mean) or broken_gates(figures, gates):
        return "fail"
    return "pass" if gates else "reported"
