"""The governor of one engine: which one, whether it lets the engine load, what it leaves of an answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from toolkit.budget import Budget
from toolkit.energy import EnergyMeter
from toolkit.errors import BudgetError
from toolkit.free_memory import ROOT
from toolkit.governor import Governor, GovernorState
from toolkit.governor_policy import load_policy
from toolkit.pacing import AnswerWatch, Held, Pacer
from toolkit.power.rapl import RaplCounter
from toolkit.power.reading import Reading
from toolkit.power.sources import DeviceReader

_LOG = logging.getLogger(__name__)


def choose_governor(asked: Governor | bool | None, budget: Budget, *, reader: Callable[[], Reading] | None = None) -> Governor | None:
    """The governor of an engine that is opened with a budget, or None for none.

    Args:
        asked: One of the caller's, with the budget's limits besides; True or False; None: one where the device has a battery or tells
            its thermal status, and where the budget has a limit on either. A machine at the mains cools itself.
        budget: See `Budget`.
        reader: What tells of the device; None: this one.
    """
    if isinstance(asked, Governor):
        return asked.within(budget)
    has_limit = budget.battery_floor is not None or budget.max_temperature_c is not None
    if asked is False and not has_limit:
        return None
    reader = reader or DeviceReader()
    if asked is None and not has_limit:
        reading = reader()
        if reading.battery_share is None and reading.thermal_status is None:
            return None
    policy = load_policy()
    if asked is False:  # nothing but the limits that were asked for
        policy = replace(policy, rows=())
    return Governor(policy.within(budget), reader)


def refuse_to_load(governor: Governor | None, name: str, budget: Budget, *, force: bool) -> None:
    """Keep a bundle from being loaded while the device asks to stop.

    Raises:
        BudgetError: It does, and nobody forces it.
    """
    if governor is None:
        return
    state = governor.poll()
    if budget.max_temperature_c is not None and governor.reading.temperature_c is None:  # a promise that cannot be kept must not be silent
        _LOG.warning("the limit of %g °C is not kept: nothing on this device tells a temperature", budget.max_temperature_c)
    if state is not GovernorState.STOP:
        return
    if force:
        governor.excuse_stops()
        return
    raise _stopped(governor, f"{name} is not loaded now", "--force (force=True)")


def threads_left(governor: Governor | None, best_threads: int) -> int | None:
    """For an engine that is opened now: how many threads the state leaves of the best number; None: as many as it would take."""
    if governor is None or (left := governor.actions.threads_of(best_threads)) == best_threads:
        return None
    return left


def _stopped(governor: Governor, what: str, way_round: str) -> BudgetError:
    fix = f"wait until that is over (plug the device in, let it cool down), or go on all the same with {way_round}"
    return BudgetError(what, why=governor.why, fix=fix)


class Governed:
    """What of an engine obeys a governor, if it has one, and counts energy, if something does.

    Attributes:
        governor: The engine's; None for none.
        meter: Of the machine.
    """

    def __init__(self, governor: Governor | None, held: Held, *, is_isolated: bool) -> None:
        counter = RaplCounter(ROOT)
        self.governor, self.meter = governor, EnergyMeter(counter if counter.is_there else None)
        self._is_isolated = is_isolated
        self._pacer = None if governor is None else Pacer(governor, held, self.meter)

    def grant(self, n_tokens: int) -> int:
        """Of so many tokens of an answer that begins now, how many the state leaves.

        Raises:
            BudgetError: It leaves none: the device asks to stop.
        """
        if self.governor is None:
            return n_tokens
        if self.governor.poll() is GovernorState.STOP:
            raise _stopped(self.governor, "nothing is answered now", "an engine opened with force=True")
        most = self.governor.actions.max_new_tokens
        return n_tokens if most is None else min(n_tokens, most)

    def watch(self) -> AnswerWatch:
        """An answer begins; whoever asks closes it."""
        return AnswerWatch(self._pacer, self.meter, is_isolated=self._is_isolated)
