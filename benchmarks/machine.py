"""What a figure was measured on: without it no figure can be compared with another."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolkit.device.busy import measure_busy_share
from toolkit.device.isa import cpu_model
from toolkit.installed import UNKNOWN, installed_version
from toolkit.limits import usable_threads

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = ("ondevice-toolkit", "litert-lm-api", "litert-torch", "litert-converter", "ai-edge-quantizer", "torch", "transformers")


def machine() -> dict[str, Any]:
    """Processor, usable CPUs, memory, system and Python; and how many CPUs others keep busy now, which spoils every timing."""
    return {
        "cpu": cpu_model(),
        "n_cpus": usable_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "busy_cpus": busy_cpus(),
    }


def busy_cpus() -> float | None:
    """CPUs that others keep busy while this process sleeps; None where nothing tells."""
    share = measure_busy_share()
    return None if share is None else round(share * (os.cpu_count() or 1), 2)


def versions(distributions: Sequence[str] = DISTRIBUTIONS) -> dict[str, str]:
    """Versions of what is installed of `distributions`, and this repository's commit, `+` appended when it has been edited."""
    found = {name: version for name in distributions if (version := installed_version(name)) != UNKNOWN}
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit:
        found["commit"] = commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    return found


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
