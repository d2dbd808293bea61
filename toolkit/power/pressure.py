"""Linux: what waits for memory or a CPU (PSI), and how full the control groups are.

PSI: Documentation/accounting/psi.rst of the kernel. Version 1 groups have no such file, and what they offer instead (events of
`memory.pressure_level`) is no figure, so of them only the share in use is told.
"""

from __future__ import annotations

from pathlib import Path

from toolkit.free_memory import group_folders, group_working_sets
from toolkit.power.kernel_files import read_text
from toolkit.power.reading import Reading, sane_share


def read_pressure(root: Path) -> Reading:
    """The worst of the machine and of every group this process is in."""
    files = [root / "proc/pressure/memory", *(folder / "memory.pressure" for folder, is_v2 in group_folders(root) if is_v2)]
    waits = [share for path in files if (share := waiting_share(path)) is not None]
    used = [min(1.0, held / limit) for limit, held in group_working_sets(root) if limit]
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


def _percent(text: str) -> float | None:
    try:
        return sane_share(float(text) / 100)
    except ValueError:
        return None
