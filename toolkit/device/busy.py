"""How busy the machine is with other work: a figure that was taken beside it is none of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from toolkit.free_memory import ROOT
from toolkit.power.kernel_files import read_text

MOST_BUSY_SHARE = 0.25  # of all CPUs: beyond it other work takes cores, caches and memory bandwidth away from what is measured
WINDOW_S = 0.5
_MOST_LOOKS = 3  # a program that has just ended or started something is not busy for long
_IDLE = slice(3, 5)  # idle and iowait, of user nice system idle iowait irq softirq steal


def measure_busy_share(root: Path = ROOT, *, sleep: Callable[[float], None] = time.sleep) -> float | None:
    """Share of all CPUs in use, 0 to 1, while this process sleeps; the least of up to three looks. None where nothing tells.

    Args:
        root: Where `proc` is; a test gives a folder of its own.
        sleep: Waits between two looks at the counters.
    """
    least: float | None = None
    for _ in range(_MOST_LOOKS):
        before = _ticks(root)
        sleep(WINDOW_S)
        after = _ticks(root)
        if before is None or after is None:
            return least
        share = min(1.0, max(0.0, (after[0] - before[0]) / max(1, after[1] - before[1])))
        least = share if least is None else min(least, share)
        if least <= MOST_BUSY_SHARE:
            break
    return least


def is_busy(share: float | None) -> bool:
    """Whether so much is in use that figures cannot be compared; what is not known is not held against them."""
    return share is not None and share > MOST_BUSY_SHARE


def busy_text(share: float) -> str:
    """For people: `other programs keep 1.3 of 2 CPUs busy`."""
    n_cpus = os.cpu_count() or 1
    return f"other programs keep {share * n_cpus:.1f} of {n_cpus} CPUs busy"


def _ticks(root: Path) -> tuple[int, int] | None:
    """Busy and all ticks of all CPUs since boot: the first line of /proc/stat (proc(5)). Guests are counted in user and nice already."""
    fields = (read_text(root / "proc/stat") or "").partition("\n")[0].split()
    if len(fields) < 5 or fields[0] != "cpu" or not all(field.isdecimal() for field in fields[1:]):
        return None
    ticks = [int(field) for field in fields[1:9]]
    return sum(ticks) - sum(ticks[_IDLE]), sum(ticks)
