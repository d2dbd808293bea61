"""What a job may cost. Limits only: estimates live in the plan, measurements in the metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass

from toolkit.errors import UsageError
from toolkit.units import parse_bytes


@dataclass(frozen=True)
class Budget:
    """Limits a run must stay inside; None means no limit.

    Args:
        memory: Resident memory of this process, like "1.2GiB" or in bytes. An engine that cannot fit is refused
            before it loads, one that turns out larger is closed again.
        seconds: Wall time of one answer, from the call to the last token. Then it ends as `FinishReason.BUDGET`.
        tokens: Tokens generated over the engine's whole life, all sessions together; then as above.
        battery_floor: Charge, 0 to 1, below which an unplugged device begins nothing (`BudgetError`) and ends what runs, as above.
        max_temperature_c: Of the hottest sensor; at it answers pause until it has cooled down.

    Raises:
        UsageError: A limit is no size, zero, negative, out of range or not a number.
    """

    memory: str | int | None = None
    seconds: float | None = None
    tokens: int | None = None
    battery_floor: float | None = None
    max_temperature_c: float | None = None

    def __post_init__(self) -> None:
        if self.memory is not None:
            parse_bytes(self.memory)
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds > 0):
            raise UsageError(f"a budget of {self.seconds} seconds is no budget", why="it must be more than 0", fix="use 10 or more")
        if self.tokens is not None and self.tokens < 1:
            raise UsageError(f"a budget of {self.tokens} tokens is no budget", why="it must be 1 or more", fix="use 256 or more")
        if self.battery_floor is not None and not 0 < self.battery_floor < 1:
            why = "it is a share of the whole charge, more than 0 and less than 1"
            raise UsageError(f"a battery floor of {self.battery_floor} is none", why=why, fix="write 15 % as 0.15")
        if self.max_temperature_c is not None and not 0 < self.max_temperature_c <= 150:
            why = "it must be more than 0 and at most 150 °C"
            raise UsageError(f"a temperature of {self.max_temperature_c} °C is no limit", why=why, fix="use 45 or another")

    @property
    def max_resident_bytes(self) -> int | None:
        """`memory` as bytes."""
        return None if self.memory is None else parse_bytes(self.memory)
