"""A device that a test makes hot, and a table that acts on it at once."""

from __future__ import annotations

import time

from toolkit.governor import Governor, GovernorState
from toolkit.governor_policy import GovernorPolicy
from toolkit.governor_rows import Actions, Condition, Row
from toolkit.power.reading import Reading

WELL = Reading(battery_share=0.9, is_plugged=False, thermal_status=0)
LOW = Reading(battery_share=0.12, is_plugged=False)
QUICK = GovernorPolicy(
    rows=tuple(
        Row(level, (Condition("thermal_status", "at least", status),))
        for status, level in ((1, GovernorState.ECONOMY), (3, GovernorState.PAUSE), (4, GovernorState.STOP))
    ),
    settle_s=0.0,
    economy=Actions(duty_share=0.5, thread_share=0.5, max_new_tokens=3),
)


class Phone:
    """A device a test makes hot; its seconds pass faster, so that nobody waits for the next look."""

    def __init__(self, reading: Reading = WELL, policy: GovernorPolicy = QUICK) -> None:
        self.reading, self.began = reading, time.monotonic()
        self.governor = Governor(policy, lambda: self.reading, clock=lambda: 20 * (time.monotonic() - self.began))

    def heat(self, status: int) -> None:
        self.reading = Reading(thermal_status=status)
