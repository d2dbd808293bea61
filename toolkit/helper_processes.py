"""Programs that an engine has started: what they take is taken by the process the engine runs in.

A process that starts one says so here; of another process all children count, because an engine's process starts nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
_started: set[int] = set()


def add_helper(pid: int) -> None:
    """Count a program with this process from now on."""
    _started.add(pid)


def remove_helper(pid: int) -> None:
    """It has ended."""
    _started.discard(pid)


def helper_pids(pid: int | None = None) -> list[int]:
    """The programs of a process (None: this one). Empty where the system does not tell the children of another."""
    if pid is None:
        return sorted(_started)
    found: set[int] = set()
    for path in _PROC.glob(f"{pid}/task/*/children"):
        try:
            found |= {int(child) for child in path.read_text(encoding="ascii").split()}
        except (OSError, ValueError):
            continue  # the thread has ended meanwhile
    return sorted(found)


def status_bytes(pid: int | None) -> dict[str, int]:
    """The sizes in /proc/PID/status, by name, in bytes; those of its programs are added. Empty where there are none to read."""
    sums = _status_bytes("self" if pid is None else str(pid))
    if sums:
        for helper in helper_pids(pid):
            for name, size in _status_bytes(str(helper)).items():
                sums[name] = sums.get(name, 0) + size
    return sums


def helpers_cpu_s() -> float:
    """CPU time this process's programs have used."""
    ticks = 0
    for pid in helper_pids():
        try:
            fields = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # utime and stime: fields 14 and 15 of proc(5)
        except (OSError, ValueError, IndexError):
            continue
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def _status_bytes(name: str) -> dict[str, int]:
    try:
        lines = (_PROC / name / "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    sizes = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: 1024 * int(value.split()[0]) for name, _, value in sizes}
