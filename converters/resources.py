"""Is there room for this conversion? Asked before any work, answered from the checkpoint's header."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from converters.faults import nearest_existing
from converters.targets.base import ConvertOptions, Estimate
from toolkit.errors import BudgetError
from toolkit.free_memory import FreeMemory, hard_limit
from toolkit.free_memory import free_memory as known_free_memory
from toolkit.units import format_bytes

__all__ = ["FreeMemory", "check_disk", "choose_memory_path", "free_memory", "hard_limit"]
SPARE_DISK_BYTES = 64 * 2**20


def free_memory(root: Path = Path("/")) -> FreeMemory:
    """The least of what the kernel calls available and what every control group of this process still allows.

    Args:
        root: Where `proc` and `sys` are; a test gives a folder of its own.
    """
    if (found := known_free_memory(root)) is not None:
        return found
    import psutil

    return FreeMemory(int(psutil.virtual_memory().available), "free memory")


def choose_memory_path(
    estimate: Callable[[ConvertOptions], Estimate],
    options: ConvertOptions,
    *,
    is_warm: bool,
    max_memory_bytes: int | None,
    free: FreeMemory,
    hard: FreeMemory | None,
) -> ConvertOptions:
    """The options with which a target's work fits in memory: as given, or lean.

    Args:
        estimate: The target's estimate for given options.
        options: As asked for.
        is_warm: Whether the float model is in the cache already.
        max_memory_bytes: The user's limit. It replaces the kernel's guess of what is free, never a control group's limit.
        free: From `free_memory`.
        hard: From `hard_limit`.

    Raises:
        BudgetError: Not even the lean path fits; the text carries need and limit.
    """
    limit = free
    if max_memory_bytes is not None:
        limit = min([FreeMemory(max_memory_bytes, "--max-memory"), *([hard] if hard else [])], key=lambda each: each.bytes)
    needs = {}
    for candidate in (options, replace(options, is_lean=True)):
        needs[candidate.is_lean] = need = _peak(estimate(candidate), is_warm)
        if need <= limit.bytes:
            return candidate
    least = min(needs.values())
    fixes = []
    for context_length in (options.context_length // 2, options.context_length // 4):
        smaller = _peak(estimate(replace(options, context_length=context_length, is_lean=True)), is_warm=False)
        if smaller <= limit.bytes:
            fixes.append(f"use --context {context_length} (about {format_bytes(smaller)})")
            break
    if limit.limited_by in ("free memory", "--max-memory"):
        fixes.append(f"give --max-memory {-(-least // 2**20)}MiB to try it all the same")
    raise BudgetError(
        "this conversion does not fit in memory",
        why=f"needs about {format_bytes(least)} at its leanest; {limit.limited_by} leaves {format_bytes(limit.bytes)}",
        fix=", or ".join(fixes) or "use a machine, or a control group, with more memory",
    )


def _peak(estimate: Estimate, is_warm: bool) -> int:
    warm = estimate.warm_peak_memory_bytes
    return warm if is_warm and warm is not None else estimate.peak_memory_bytes


def check_disk(needs: Mapping[Path, int], *, free_bytes: Callable[[Path], int] | None = None) -> None:
    """Refuse work whose files would not fit.

    Args:
        needs: Folder (need not exist yet) -> bytes that will be written there. Folders on one disk are added up.
        free_bytes: Free space of a folder's disk; by default asked of the system.

    Raises:
        BudgetError: A disk has less than its sum plus 64 MiB; the text carries each figure.
    """
    free_bytes = free_bytes or (lambda folder: shutil.disk_usage(folder).free)
    disks: dict[int, list[tuple[Path, int]]] = {}
    for folder, needed in needs.items():
        existing = nearest_existing(folder)
        disks.setdefault(os.stat(existing).st_dev, []).append((folder, needed))
    for parts in disks.values():
        needed = sum(part for _, part in parts) + SPARE_DISK_BYTES
        free = free_bytes(nearest_existing(parts[0][0]))
        if needed > free:
            detail = " and ".join(f"{format_bytes(part)} in {folder}" for folder, part in parts)
            raise BudgetError(
                "this conversion does not fit on the disk",
                why=f"needs {detail} and {format_bytes(SPARE_DISK_BYTES)} to spare; {format_bytes(free)} are free",
                fix=f"free {format_bytes(needed - free)}, or set another --out or ONDEVICE_TOOLKIT_CACHE on a disk with more room",
            )
