"""What will run, and how: a bundle, its context and threads, inside what the device has free. Arithmetic only, no engine is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from toolkit.backends import backend_for, load_backend
from toolkit.budget import Budget
from toolkit.bundle import SPEECH_TARGET, Bundle
from toolkit.device.profile import Device
from toolkit.engine_memory import engine_memory
from toolkit.errors import BackendUnavailableError, BudgetError, ToolkitError, UsageError
from toolkit.limits import check_context_length, check_expected_tokens, check_threads
from toolkit.memory import MemoryEstimate, estimate_memory, prefill_chunk
from toolkit.plan_refusal import BUDGET, Limit, refusal, unrunnable
from toolkit.target_support import why_not
from toolkit.units import format_bytes

CONTEXT_STEP = 64
FIRST_CONTEXT = 512
_KV_TYPES = {4: "float32", 2: "float16", 1: "int8"}


@runtime_checkable
class PacksWeights(Protocol):
    """A backend whose first start of a bundle packs its weights for the processor and keeps them."""

    def is_first_start(self, bundle: Bundle) -> bool:
        """Whether that is still to be done here; reads a folder, loads nothing."""


@dataclass(frozen=True)
class Plan:
    """One way to run one bundle.

    Args:
        bundle: What runs.
        backend: What runs it.
        context_length: Tokens the KV cache is opened with.
        max_context_length: Tokens it may grow to without leaving `available_bytes`.
        threads: CPU threads.
        cpus: CPUs the engine's process keeps to; empty for all.
        prefill_chunk: Prompt tokens taken at once.
        kv_cache_type: "float32", "float16" or "int8".
        estimate: Memory, by parts.
        available_bytes: What it may take; None where nothing tells and no budget is set.
        limited_by: Which limit that is.
        fits: Whether the estimate is inside it.
        is_forced: It does not fit, and was asked for all the same.
        rejected: Bundles that were asked for before this one, and why they do not run.
    """

    bundle: Bundle
    backend: str
    context_length: int
    max_context_length: int
    threads: int
    cpus: tuple[int, ...]
    prefill_chunk: int
    kv_cache_type: str
    estimate: MemoryEstimate
    available_bytes: int | None
    limited_by: str
    fits: bool
    is_forced: bool = False
    rejected: tuple[tuple[str, str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The object of `toolkit plan --json`."""
        names = ("backend", "context_length", "max_context_length", "threads", "prefill_chunk", "kv_cache_type")
        return {
            "bundle": self.bundle.name,
            "fits": self.fits,
            "is_forced": self.is_forced,
            **{name: getattr(self, name) for name in names},
            "cpus": list(self.cpus),
            "estimated_peak_rss_bytes": self.estimate.peak_rss_bytes,
            "estimated_mapped_bytes": self.estimate.mapped_bytes,
            "is_calibrated": self.estimate.is_calibrated,
            "parts": self.estimate.parts,
            "available_bytes": self.available_bytes,
            "limited_by": self.limited_by,
            "rejected": [{"bundle": name, "why": why} for name, why in self.rejected],
        }


@dataclass(frozen=True)
class _Work:
    """What is asked for, the same for every bundle."""

    device: Device
    budget: Budget
    context_length: int | None
    expected_tokens: int | None
    threads: int | None
    backend: str | None
    resident_bytes: int


def make_plan(
    bundles: Bundle | Sequence[Bundle],
    device: Device,
    budget: Budget | None = None,
    *,
    context_length: int | None = None,
    expected_tokens: int | None = None,
    threads: int | None = None,
    backend: str | None = None,
    force: bool = False,
    resident_bytes: int = 0,
) -> Plan:
    """The first of `bundles` that runs on the device inside its memory and the budget.

    Args:
        bundles: One, or several in the order of preference. Only their manifests are read.
        device: From `probe_device` or `load_device`.
        budget: Its `memory` counts here.
        context_length: Tokens, fixed. None: the smallest that holds the work, because each decoded token reads the whole cache.
        expected_tokens: The work: prompt and answer together. None: as many as fit, up to 512; the engine grows it on demand.
        threads: None: one a big core, at most 4.
        backend: None: the one that runs the bundle's target.
        force: Plan the first bundle that can run at all, even if it does not fit.
        resident_bytes: What the process that will run the engine holds already; the budget counts it too.

    Raises:
        BudgetError: None fits; the fix holds settings that would.
        BackendUnavailableError: No backend runs any of them on this device; the fix names targets that would.
        UsageError: The context, the threads or the expected tokens are out of range, or the backend does not run a bundle's target.
    """
    if threads is not None:
        check_threads(threads, most=device.cores.n_logical, where=device.name)
    if expected_tokens is not None:
        check_expected_tokens(expected_tokens)
    chosen = [bundles] if isinstance(bundles, Bundle) else list(bundles)
    work = _Work(device, budget or Budget(), context_length, expected_tokens, threads, backend, resident_bytes)
    rejected: list[tuple[str, str]] = []
    refused: list[tuple[Plan, Limit]] = []
    for bundle in chosen:
        try:
            name = _backend_name(bundle, work)
        except BackendUnavailableError as error:
            rejected.append((bundle.name, ": ".join(filter(None, (error.what, error.why)))))
            continue
        plan, limit = _plan(bundle, name, work)
        if plan.fits or force:
            return replace(plan, rejected=tuple(rejected), is_forced=force and not plan.fits)
        needs = format_bytes(limit.taken_by(plan.estimate))
        rejected.append((bundle.name, f"it needs {needs}; {limit.limited_by} leaves {format_bytes(limit.bytes)}"))
        refused.append((plan, limit))
    if not chosen:
        raise UsageError("there is nothing to plan", why="no bundle was given", fix="toolkit plan BUNDLE...")
    if not refused:
        raise unrunnable(chosen, device, rejected)
    plan, limit = min(refused, key=lambda pair: pair[0].estimate.peak_rss_bytes)
    why_refused = refusal(plan, limit, _limits(work), lambda length: _estimate(plan, work, length))
    raise PlanRefused(replace(plan, rejected=tuple(rejected)), why_refused)


class PlanRefused(BudgetError):
    """No bundle fits. `plan` is what was refused last, for `--json`."""

    def __init__(self, plan: Plan, error: ToolkitError) -> None:
        super().__init__(error.what, why=error.why, fix=error.fix)
        self.plan = plan


def round_context(n_tokens: int, most: int) -> int:
    """The next multiple of 64 that holds `n_tokens`, at most `most`."""
    return min(-(-n_tokens // CONTEXT_STEP) * CONTEXT_STEP, most)


def _backend_name(bundle: Bundle, work: _Work) -> str:
    """The backend that runs a bundle on the device.

    Raises:
        BackendUnavailableError: None does.
        UsageError: The one that was asked for does not run this target.
    """
    target = bundle.manifest.target
    if work.backend is not None and target not in load_backend(work.backend).targets:
        raise UsageError(
            f"the backend {work.backend} cannot run {bundle.name}",
            why=f"it is a bundle for {target}; {work.backend} runs {', '.join(load_backend(work.backend).targets)}",
            fix=_other_backend(target, work.backend),
        )
    if (why := why_not(target, work.device)) is not None:
        raise BackendUnavailableError(why, fix="use a bundle for another target")
    if bundle.is_speech and target != SPEECH_TARGET:
        raise BackendUnavailableError(f"this version runs speech models for {SPEECH_TARGET} alone", fix="use a bundle for it")
    return work.backend or backend_for(target)


def _other_backend(target: str, asked: str) -> str:
    try:
        return f"leave --backend out: {backend_for(target)} is taken then"
    except BackendUnavailableError:
        return f"convert the model for it: convert SOURCE --to {load_backend(asked).targets[0]}"


def _plan(bundle: Bundle, backend: str, work: _Work) -> tuple[Plan, Limit]:
    most = bundle.manifest.context_length
    if work.context_length is not None:
        check_context_length(work.context_length, most=most)
        most = work.context_length
    wanted = work.context_length or round_context(work.expected_tokens or FIRST_CONTEXT, most)
    limits = _limits(work)
    is_first = _is_first_start(bundle, backend, work)

    def estimate(length: int) -> MemoryEstimate:
        return estimate_memory(bundle.manifest, context_length=length, is_first_start=is_first)

    def is_inside(length: int) -> bool:
        return all(limit.holds(estimate(length)) for limit in limits)

    largest = _largest(is_inside, most)
    if largest < wanted and work.context_length is None and work.expected_tokens is None:
        wanted = largest or min(CONTEXT_STEP, most)
    needed = estimate(wanted)
    tightest = min(limits, key=lambda limit: limit.bytes - limit.taken_by(needed), default=Limit(2**62, "nothing known here"))
    cores = work.device.cores
    threads = work.threads or cores.best_threads
    engine = engine_memory(bundle.manifest.target)
    plan = Plan(
        bundle=bundle,
        backend=backend,
        context_length=wanted,
        max_context_length=max(wanted, largest),
        threads=threads,
        cpus=cores.big_cpus if threads <= cores.n_big else (),
        prefill_chunk=min(prefill_chunk(bundle.manifest), wanted),
        kv_cache_type=_KV_TYPES.get(int(engine.kv_bytes_per_value), "unknown"),
        estimate=needed,
        available_bytes=tightest.bytes if limits else None,
        limited_by=tightest.limited_by,
        fits=is_inside(wanted),
    )
    return plan, tightest


def _estimate(plan: Plan, work: _Work, length: int) -> MemoryEstimate:
    is_first = _is_first_start(plan.bundle, plan.backend, work)
    return estimate_memory(plan.bundle.manifest, context_length=length, is_first_start=is_first)


def _is_first_start(bundle: Bundle, backend: str, work: _Work) -> bool:
    if not work.device.is_this_one:
        return True  # nothing is known of its files
    chosen = load_backend(backend)
    return chosen.is_first_start(bundle) if isinstance(chosen, PacksWeights) else True


def _limits(work: _Work) -> list[Limit]:
    device, limits = work.device, list[Limit]()
    if (budget := work.budget.max_resident_bytes) is not None:
        limits.append(Limit(max(0, budget - work.resident_bytes), BUDGET, held_bytes=work.resident_bytes))
    if device.free_memory is not None:
        limits.append(Limit(device.free_memory.bytes, device.free_memory.limited_by))
    if device.free_address_space is not None:
        limits.append(Limit(device.free_address_space.bytes, device.free_address_space.limited_by, is_address_space=True))
    return limits


def _largest(is_inside: Callable[[int], bool], most: int) -> int:
    """The largest context that fits, in steps of 64 (or `most` itself); 0 if none does. Memory only grows with it."""
    if is_inside(most):
        return most
    low, high = 0, (most - 1) // CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_inside(middle * CONTEXT_STEP) else (low, middle - 1)
    return low * CONTEXT_STEP
