"""What a figure was measured on: without it no figure can be compared with another."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from toolkit.limits import usable_threads

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = ("ondevice-toolkit", "litert-lm-api", "litert-torch", "litert-converter", "ai-edge-quantizer", "torch", "transformers")


def machine() -> dict[str, Any]:
    """Processor, usable CPUs, memory, system and Python; and how many CPUs others keep busy now, which spoils every timing."""
    return {
        "cpu": _cpu_model(),
        "n_cpus": usable_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "busy_cpus": measure_busy_cpus(),
    }


def measure_busy_cpus(window_s: float = 0.3) -> float | None:
    """CPUs in use over a short time in which this process sleeps, all processes together; None where /proc/stat is missing."""
    before = _cpu_seconds()
    time.sleep(window_s)
    after = _cpu_seconds()
    if before is None or after is None:
        return None
    (busy_before, all_before), (busy_after, all_after) = before, after
    share = (busy_after - busy_before) / max(1, all_after - all_before)
    return round(share * (os.cpu_count() or 1), 2)


def _cpu_seconds() -> tuple[int, int] | None:
    """Busy and all ticks of all CPUs since boot (proc(5), the first line of /proc/stat: user nice system idle iowait ...)."""
    try:
        ticks = [int(value) for value in Path("/proc/stat").read_text("ascii").partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Hardware")))
    return next(named, platform.machine())


def versions(distributions: Sequence[str] = DISTRIBUTIONS) -> dict[str, str]:
    """Versions of what is installed of `distributions`, and this repository's commit, `+` appended when it has been edited."""
    found = {}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit:
        found["commit"] = commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    return found


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
