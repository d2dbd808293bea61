"""Bounds for work that a stranger's file decides: a chat template is a program, and may never end or may fill the memory.

A process confines itself, from where it stands, so that what it has imported does not count. Past a bound the system ends it
with a signal, or its allocations fail; its parent (`converters.child`) says what happened.
"""

from __future__ import annotations

import contextlib
import math
import sys
from pathlib import Path


def confine(*, cpu_s: float, memory_bytes: int) -> None:
    """Let this process use only so much more than it has used until now.

    Args:
        cpu_s: CPU time of all its threads in seconds; then SIGXCPU ends it.
        memory_bytes: Address space; then allocations fail. Linux only: other systems do not say how much is in use.
    """
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    _lower(resource.RLIMIT_CPU, math.ceil(usage.ru_utime + usage.ru_stime + cpu_s))
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + memory_bytes)


def _lower(kind: int, limit: int) -> None:
    """Set a soft limit, unless a lower one is set already."""
    import resource

    soft, hard = resource.getrlimit(kind)
    known = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
    with contextlib.suppress(ValueError, OSError):  # a system that has no such limit
        resource.setrlimit(kind, (min([limit, *known]), hard))
