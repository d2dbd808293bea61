"""Why an assembled bundle is not published: it is not what its recipe promised, or it does not answer like its checkpoint."""

from __future__ import annotations

import math

from converters.gates import broken_gates
from converters.recipe import Recipe
from toolkit.errors import FidelityError, ToolkitError
from toolkit.manifest import Fidelity


def broken_promise(name: str, recipe: Recipe, *, promised: float, measured: float) -> ToolkitError | None:
    """The error for a file whose bits per weight are not those of its recipe; None if they are."""
    if not recipe.breaks_promise(promised, measured):
        return None
    return ToolkitError(
        f"{name} is not what its recipe promises",
        why=f"the file holds {measured:.3f} bits per weight, {recipe.name} means {promised:.3f} (10 % off is allowed)",
        fix="use another recipe, and report it: this target does not carry this one out",
    )


def failed_gates(name: str, recipe: Recipe, fidelity: Fidelity) -> ToolkitError | None:
    """The error for figures that fail; None if they pass. Its fix names a --max-kl only if that would publish the bundle."""
    if fidelity.verdict != "fail":
        return None
    fix, enough = "use a recipe with more bits, such as int8", _rounded_up(fidelity.kl_mean)
    if not broken_gates(fidelity, recipe.with_max_kl(enough).gates):
        fix += f", or accept it with --max-kl {enough:g} --resume"
    broken = broken_gates(fidelity, recipe.gates) or [f"kl_mean is {fidelity.kl_mean}"]
    return FidelityError(f"{name} does not answer like its checkpoint, so it was not published", why="; ".join(broken), fix=fix)


def _rounded_up(value: float) -> float:
    """The least number of two significant digits that is not below a positive value; 0 if there is none."""
    if not 0 < value < math.inf:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit
