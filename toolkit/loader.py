"""Loads a plan, in a process of its own or in this one, and loads it again when that process is gone."""

from __future__ import annotations

import logging
import time
import weakref
from dataclasses import dataclass, replace

from toolkit.backends import BACKENDS
from toolkit.backends.base import Backend, NativeEngine
from toolkit.budget import Budget
from toolkit.bundle import Bundle
from toolkit.device.profile import Device
from toolkit.errors import BackendUnavailableError, BudgetError
from toolkit.load_mark import DIED, LoadMark, PastFailure, versions
from toolkit.metrics import measure_peak_rss_bytes, measure_rss_bytes
from toolkit.plan import CONTEXT_STEP, Plan, make_plan
from toolkit.units import format_bytes
from toolkit.worker_death import CrashCause, EngineCrashed
from toolkit.worker_proxy import IsolatedBackend, RemoteEngine
from toolkit.worker_start import can_isolate
from toolkit.worker_watch import WorkerLimits

_LOG = logging.getLogger(__name__)
_MOST_CRASHES_IN_A_ROW = 2
_BARE_PYTHON_BYTES = 24 * 2**20  # what the estimate of an engine's process counts for the interpreter itself


@dataclass(frozen=True)
class LoadSettings:
    """What stays the same however often a bundle is loaded.

    Args:
        device: What memory is planned for.
        budget: Its `memory` counts.
        backend: As asked for, or None.
        threads: As asked for, or None.
        context_length: Fixed, so that it must not become smaller, or None.
        force: Load what does not fit, or failed before.
        isolated: In a process of its own; None: where the platform allows.
        limits: When that process counts as hanging.
    """

    device: Device
    budget: Budget
    backend: str | None
    threads: int | None
    context_length: int | None
    force: bool
    isolated: bool | None
    limits: WorkerLimits


class Loader:
    """The native engine of one `Engine`, from its first load to its end.

    Attributes:
        native: What is loaded, or None.
        plan: What it was loaded by.
        load_s: How long the last load took.
        n_restarts: How often it was loaded again because its process was gone.
        is_isolated: Whether it has a process of its own.
        is_closed: It is not to be loaded any more.
    """

    def __init__(self, bundle: Bundle, backend: Backend, settings: LoadSettings, *, expected_tokens: int | None = None) -> None:
        """Plan it; nothing is loaded yet.

        Raises:
            BackendUnavailableError: A process of its own was asked for, and this platform has none.
            BudgetError, UsageError: See `make_plan`. Or the bundle takes no prompts.
        """
        bundle.require_prompts()
        self.native: NativeEngine | None = None
        self.load_s, self.n_restarts, self.is_closed = 0.0, 0, False
        self._bundle, self._settings = bundle, settings
        self.is_isolated = _decide_isolation(settings.isolated, backend)
        self.plan = self._plan(settings.context_length, expected_tokens)
        self._most = self.plan.max_context_length
        self._backend: Backend = backend
        if self.is_isolated:
            most = None if settings.force else settings.budget.max_resident_bytes
            limits = replace(settings.limits, max_resident_bytes=most)
            self._backend = IsolatedBackend(backend, limits=limits, cpus=self.plan.cpus)
        self._mark: LoadMark | None = None
        self._n_memory_crashes = self._n_crashes_in_a_row = 0
        self._finalizer: weakref.finalize[[], Loader] | None = None

    @property
    def max_context_length(self) -> int:
        """Tokens the context may grow to: what the bundle was converted for, and memory allows."""
        return self.plan.bundle.manifest.context_length if self._settings.force else self._most

    @property
    def crash(self) -> EngineCrashed | None:
        """What ended the engine's process, if something did."""
        return self.native.worker.crash if isinstance(self.native, RemoteEngine) else None

    def open(self, plan: Plan, *, is_again: bool = False) -> None:
        """Load a plan; one with a smaller context if this one is known to fail, or ends the process for lack of memory (once).

        Whatever it raises, another attempt may follow: `plan` stays what was last loaded or planned.

        Args:
            plan: What to load.
            is_again: This loader had it loaded before, so what it died of then was no load.

        Raises:
            BudgetError: The plan failed before and has no smaller one, or turned out larger than the budget.
            EngineCrashed: Loading ended the process.
            FormatError: The engine refused the files.
        """
        mark = LoadMark(self._bundle.content_hash, plan.backend, versions(plan.backend), plan.context_length, plan.threads)
        failure = None if self._settings.force or is_again else mark.past_failure()
        if failure is not None and failure.still_counts(self._free_bytes()):
            self._open_smaller(plan, _failed_before(plan, failure))
            return
        if not self.is_isolated:
            mark.begin(self._free_bytes())
        started = time.perf_counter()
        try:
            native = self._backend.open_engine(self._bundle, context_length=plan.context_length, threads=plan.threads)
        except EngineCrashed as crash:
            if crash.cause is not CrashCause.KILLED:  # somebody's kill says nothing of the plan
                mark.fail(crash.cause, self._free_bytes())
            if crash.cause is not CrashCause.MEMORY or self._n_memory_crashes:
                raise
            self._n_memory_crashes += 1
            self.n_restarts += 1
            self._open_smaller(plan, crash)
            return
        except BaseException:
            mark.abandon()
            raise
        self.load_s = time.perf_counter() - started
        self.native, self.plan, self._mark = native, plan, mark
        if isinstance(native, RemoteEngine):
            self._finalizer = weakref.finalize(self, native.worker.close)
        self._check_size(plan)

    def plan_for(self, context_length: int) -> Plan:
        """The plan at another context.

        Raises:
            BudgetError: It does not fit.
        """
        return self._plan(context_length, None)

    def _plan(self, context_length: int | None, expected_tokens: int | None) -> Plan:
        settings = self._settings
        return make_plan(
            self._bundle,
            settings.device,
            settings.budget,
            context_length=context_length,
            expected_tokens=expected_tokens,
            threads=settings.threads,
            backend=settings.backend,
            force=settings.force,
            resident_bytes=0 if self.is_isolated else _held_before(),
        )

    def reopen(self) -> None:
        """Load again what ended by itself; on a smaller plan if memory was the cause, once.

        Raises:
            EngineCrashed: It ended too often; nothing is loaded by itself any more.
        """
        crash, plan = self.crash, self.plan
        assert crash is not None
        self.fail(crash)
        is_memory = crash.cause is CrashCause.MEMORY
        self._n_memory_crashes += is_memory
        self._n_crashes_in_a_row += crash.cause is not CrashCause.KILLED
        if self._n_memory_crashes > 1 or self._n_crashes_in_a_row > _MOST_CRASHES_IN_A_ROW:
            raise crash
        if is_memory:
            self._open_smaller(plan, crash)
        else:
            self.unload()
            self.open(plan, is_again=True)
        self.n_restarts += 1

    def fail(self, crash: EngineCrashed) -> None:
        """Note that the plan's first answer ended its process."""
        mark, self._mark = self._mark, None
        if mark is not None and crash.cause is not CrashCause.KILLED:
            mark.fail(crash.cause, self._free_bytes())

    def succeed(self) -> None:
        """An answer has ended well: the plan works here."""
        self._n_crashes_in_a_row = 0
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.succeed()

    def hold(self, is_held: bool) -> None:
        """Stop the engine's process where it is, or let it go on; nothing for an engine of this process, whose text is held instead."""
        if isinstance(native := self.native, RemoteEngine):
            native.worker.hold(is_held)

    def peak_rss_bytes(self) -> int | None:
        """Highest resident memory of the process the engine runs in; None while it has none."""
        if not isinstance(self.native, RemoteEngine):
            return None if self.is_isolated else measure_peak_rss_bytes()
        worker = self.native.worker
        return worker.peak_rss_bytes or (measure_peak_rss_bytes(worker.pid) if worker.pid else None)

    def close(self) -> None:
        """Free the weights for good. May be called twice."""
        self.is_closed = True
        self.unload()

    def unload(self) -> None:
        """Free the weights; `open` loads them again."""
        native, self.native = self.native, None
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.abandon()  # loaded, closed in order, never asked: nothing is known of it
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        if native is not None:
            native.close()

    def _open_smaller(self, plan: Plan, reason: EngineCrashed | BudgetError) -> None:
        smaller = plan.context_length // 2 // CONTEXT_STEP * CONTEXT_STEP
        if self._settings.context_length is not None or self._settings.force or smaller < CONTEXT_STEP:
            raise reason
        self._most = smaller
        _LOG.warning("%s; trying a context of %d tokens", reason.what, smaller)
        self.unload()
        self.open(self.plan_for(smaller))

    def _check_size(self, plan: Plan) -> None:
        """An engine that turns out larger than the budget is closed again."""
        limit = self._settings.budget.max_resident_bytes
        worker = self.native.worker if isinstance(self.native, RemoteEngine) else None
        taken = measure_rss_bytes(worker.pid if worker is not None else None) or 0
        if limit is None or taken <= limit or self._settings.force:
            return
        self.unload()
        raise BudgetError(
            f"{self._bundle.name} does not fit the memory budget",
            why=f"loaded with {plan.context_length} tokens of context it takes {format_bytes(taken)}; the budget is {format_bytes(limit)}",
            fix=f"allow {format_bytes(taken + taken // 4)} or more, or convert with a smaller recipe (--recipe int4-g32)",
        )

    def _free_bytes(self) -> int | None:
        free = self._settings.device.free_memory
        return None if free is None else free.bytes


def _decide_isolation(asked: bool | None, backend: Backend) -> bool:
    """A backend that another process cannot find by its name (one made by hand, in a test) stays here."""
    if asked is None:
        return can_isolate() and _is_registered(backend)
    if asked and not can_isolate():
        raise BackendUnavailableError(
            "an engine cannot have its own process here", why="this platform lets an app start none", fix="leave isolated=True out"
        )
    return asked


def _is_registered(backend: Backend) -> bool:
    return type(backend).__module__ == BACKENDS.get(backend.name)


def _held_before() -> int:
    """What this process holds already beyond a bare interpreter: a budget on its memory counts that too."""
    return max(0, (measure_rss_bytes() or 0) - _BARE_PYTHON_BYTES)


def _failed_before(plan: Plan, failure: PastFailure) -> BudgetError:
    how = "the app ended while it was loading" if failure.cause == DIED else f"it ended its engine's process ({failure.cause})"
    return BudgetError(
        f"{plan.bundle.name} is not loaded again at {plan.context_length} tokens",
        why=f"last time {how}; the bundle, the engine and the memory that is free are the same",
        fix="use a smaller --context or a smaller model, free memory, or try it all the same with --force (by itself it is tried in a day)",
    )
