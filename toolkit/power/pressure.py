"""Linux: what waits for memory or a CPU (PSI), and how full the control groups are.

PSI: Documentation/accounting/psi.rst of the kernel. Version 1 groups have no such file, and what they offer instead (events of
`memory.pressure_level`) is no figure, so of them only the share in use is told.
"""

from __future__ import annotations

from pathlib import Path

from toolkit.free_memory import group_folders, read_counter
from toolkit.power.kernel_files import read_integer, read_text
from toolkit.power.reading import Reading, sane_share

_UNLIMITED = 2**60  # version 1 writes "no limit" as a number near 2^63


def read_pressure(root: Path) -> Reading:
    """The worst of the machine and of every group this process is in."""
    groups = group_folders(root)
    files = [root / "proc/pressure/memory", *(folder / "memory.pressure" for folder, is_v2 in groups if is_v2)]
    waits = [share for path in files if (share := waiting_share(path)) is not None]
    used = [share for folder, is_v2 in groups if (share := used_share(folder, is_v2=is_v2)) is not None]
    return Reading(
        memory_pressure=max(waits, default=None),
        memory_used_share=max(used, default=None),
        cpu_pressure=waiting_share(root / "proc/pressure/cpu"),
    )


def waiting_share(path: Path) -> float | None:
    """The share of the last ten seconds in which something waited: `some avg10=1.23 ...` is .0123."""
    for line in (read_text(path) or "").splitlines():
        kind, *fields = line.split()
        if kind != "some":
            continue
        for field in fields:
            name, _, value = field.partition("=")
            if name == "avg10":
                return _percent(value)
    return None


def used_share(folder: Path, *, is_v2: bool) -> float | None:
    """Of a group's limit, what it holds beyond the page cache it would give back first; None without a limit."""
    limit = read_integer(folder / ("memory.max" if is_v2 else "memory.limit_in_bytes"))
    usage = read_integer(folder / ("memory.current" if is_v2 else "memory.usage_in_bytes"))
    if limit is None or usage is None or not 0 < limit < _UNLIMITED:
        return None
    reclaimable = read_counter(folder / "memory.stat", "inactive_file" if is_v2 else "total_inactive_file") or 0
    return sane_share(min(1.0, max(0, usage - reclaimable) / limit))


def _percent(text: str) -> float | None:
    try:
        return sane_share(float(text) / 100)
    except ValueError:
        return None
