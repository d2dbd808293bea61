"""Why a plan is refused, and settings that were computed to fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from toolkit.bundle import SPEECH_TARGET, Bundle
from toolkit.device.profile import Device
from toolkit.errors import BackendUnavailableError, BudgetError
from toolkit.memory import MemoryEstimate
from toolkit.target_support import targets_for
from toolkit.units import format_bytes

if TYPE_CHECKING:
    from toolkit.plan import Plan

_SMALL_RECIPE, _SMALL_BITS = "int4-g32", 4.5
_LEAST_CONTEXT = 64
_SPARE_BYTES = 4 * 2**20
BUDGET = "the budget"
_PART_NAMES = {
    "weights_bytes": "weights",
    "kv_cache_bytes": "KV cache",
    "activations_bytes": "activations",
    "tokenizer_bytes": "tokenizer",
    "engine_bytes": "engine",
    "packing_bytes": "packing at the first start",
}


@dataclass(frozen=True)
class Limit:
    """Memory that may be taken, and what says so; `held_bytes` of it are taken already and not in `bytes`."""

    bytes: int
    limited_by: str
    is_address_space: bool = False
    held_bytes: int = 0

    def taken_by(self, estimate: MemoryEstimate) -> int:
        """What of an estimate this limit counts."""
        return (estimate.address_space_bytes or 0) if self.is_address_space else estimate.peak_rss_bytes

    def holds(self, estimate: MemoryEstimate) -> bool:
        """Whether the estimate is inside."""
        return self.taken_by(estimate) <= self.bytes


def refusal(plan: Plan, limit: Limit, limits: Sequence[Limit], estimate: Callable[[int], MemoryEstimate]) -> BudgetError:
    """The error for a plan that does not fit.

    Args:
        plan: What was wanted.
        limit: The one it breaks most.
        limits: All there are: a fix has to keep every one of them, or the next run is refused by another.
        estimate: Memory at another context length.
    """
    needed = plan.estimate
    if limit.is_address_space:
        needs = f"needs {format_bytes(limit.taken_by(needed))} of address space"
    else:
        parts = sorted(needed.parts.items(), key=lambda part: -part[1])
        named = ", ".join(f"{_PART_NAMES[name]} {format_bytes(size)}" for name, size in parts if size)
        needs = f"needs {format_bytes(needed.peak_rss_bytes)} ({named})"
    where = "the memory budget" if limit.limited_by == BUDGET else "into memory here"
    return BudgetError(
        f"{plan.bundle.name} does not fit {where} at {plan.context_length} tokens",
        why=f"it {needs}; {limit.limited_by} leaves {format_bytes(limit.bytes)}",
        fix=", or ".join(_fixes(plan, limit, limits, estimate)),
    )


def _fixes(plan: Plan, limit: Limit, limits: Sequence[Limit], estimate: Callable[[int], MemoryEstimate]) -> list[str]:
    fixes = []
    for length in range((plan.context_length - 1) // _LEAST_CONTEXT * _LEAST_CONTEXT, 0, -_LEAST_CONTEXT):
        smaller = estimate(length)
        if all(other.holds(smaller) for other in limits):
            fixes.append(f"use --context {length} ({format_bytes(limit.taken_by(smaller))})")
            break
    broken = [other for other in limits if not other.holds(plan.estimate)]
    bits = plan.bundle.manifest.bits_per_weight
    if bits > 1.1 * _SMALL_BITS and not any(other.is_address_space for other in broken):
        recoded = _recoded(plan.estimate, _SMALL_BITS / bits)
        if all(other.holds(recoded) for other in broken):
            fixes.append(f"convert with --recipe {_SMALL_RECIPE} (about {format_bytes(recoded.peak_rss_bytes)})")
    to_free = max((other.taken_by(plan.estimate) - other.bytes for other in broken if other.limited_by != BUDGET), default=0)
    budget = next((other for other in broken if other.limited_by == BUDGET), None)
    if budget is not None and not to_free:
        fixes.append(f"allow --max-memory {_allowance(budget, plan.estimate)}MiB")
    elif not fixes:
        also = "" if budget is None else f" and allow --max-memory {_allowance(budget, plan.estimate)}MiB"
        fixes.append(f"free {format_bytes(to_free)}{also}, or use a smaller model")
    return [*fixes, "try it all the same with --force"]


def _allowance(budget: Limit, estimate: MemoryEstimate) -> int:
    """MiB of a budget that would do. A process that holds something by itself holds a little more or less the next time."""
    spare = _SPARE_BYTES if budget.held_bytes else 0
    return -(-(budget.taken_by(estimate) + budget.held_bytes + spare) // 2**20)


def _recoded(estimate: MemoryEstimate, share: float) -> MemoryEstimate:
    """The same bundle with weights of another size."""
    return replace(estimate, weights_bytes=int(estimate.weights_bytes * share), packing_bytes=int(estimate.packing_bytes * share))


def unrunnable(bundles: Sequence[Bundle], device: Device, rejected: Sequence[tuple[str, str]]) -> BackendUnavailableError:
    """The error for bundles none of which has an engine on the device."""
    refused = {bundle.manifest.target for bundle in bundles}
    is_speech = any(bundle.is_speech for bundle in bundles)
    usable = [target for target in targets_for(device) if target not in refused and (target == SPEECH_TARGET or not is_speech)]
    way_out = f"convert the model for it: convert SOURCE --to {','.join(usable)}" if usable else "use another device"
    return BackendUnavailableError(
        f"none of these bundles runs on {device.name}", why="; ".join(f"{name}: {why}" for name, why in rejected), fix=way_out
    )
