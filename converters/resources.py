"""Is there room for this conversion? Asked before any work, answered from the checkpoint's header."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from converters.faults import nearest_existing
from converters.targets.base import ConvertOptions, Estimate
from toolkit.errors import BudgetError
from toolkit.units import format_bytes

SPARE_DISK_BYTES = 64 * 2**20
_UNLIMITED = 2**60  # cgroup v1 writes "no limit" as a number near 2^63


@dataclass(frozen=True)
class FreeMemory:
    """Memory a new process may take, and which limit says so."""

    bytes: int
    limited_by: str


def free_memory(root: Path = Path("/")) -> FreeMemory:
    """The least of what the kernel calls available and what every control group of this process still allows.

    A group allows its limit minus its working set (usage without the page cache it would give back first).

    Args:
        root: Where `proc` and `sys` are; a test gives a folder of its own.
    """
    candidates = [FreeMemory(_available(root), "free memory"), *_group_limits(root)]
    return min(candidates, key=lambda candidate: candidate.bytes)


def hard_limit(root: Path = Path("/")) -> FreeMemory | None:
    """The tightest control group: beyond it the kernel kills, whatever the user says. None if there is none."""
    return min(_group_limits(root), key=lambda candidate: candidate.bytes, default=None)


def _available(root: Path) -> int:
    meminfo = root / "proc/meminfo"
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    import psutil

    return int(psutil.virtual_memory().available)


def _group_limits(root: Path) -> list[FreeMemory]:
    limits = []
    for folder, is_v2 in _group_folders(root):
        limit = _number(folder / ("memory.max" if is_v2 else "memory.limit_in_bytes"))
        usage = _number(folder / ("memory.current" if is_v2 else "memory.usage_in_bytes"))
        if limit is None or usage is None or limit >= _UNLIMITED:
            continue
        reclaimable = _stat(folder / "memory.stat", "inactive_file" if is_v2 else "total_inactive_file")
        free = max(0, limit - max(0, usage - reclaimable))
        limits.append(FreeMemory(free, f"the control group's memory limit of {format_bytes(limit)}"))
    return limits


def _group_folders(root: Path) -> list[tuple[Path, bool]]:
    """Every control group folder that limits this process's memory, its own first, with whether it is version 2."""
    own = _own_groups(root)
    folders = []
    for mounted_path, mount_point, is_v2 in _group_mounts(root):
        top = root / mount_point.lstrip("/")
        path = PurePosixPath(own.get(is_v2, "/"))
        # In a container the mount shows only a subtree, and the process's path may lie outside of what it shows.
        inner = path.relative_to(mounted_path) if path.is_relative_to(mounted_path) else PurePosixPath(".")
        folders += [(folder, is_v2) for folder in (top / inner, *(top / parent for parent in inner.parents))]
    return folders


def _own_groups(root: Path) -> Mapping[bool, str]:
    groups = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if not controllers or "memory" in controllers.split(","):
            groups[not controllers] = path
    return groups


def _group_mounts(root: Path) -> list[tuple[str, str, bool]]:
    """(path inside the hierarchy, mount point, is version 2) of each mounted hierarchy that may limit memory."""
    mounts = []
    for line in _lines(root / "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        kind, _, options = (right.split(" ", 2) + ["", ""])[:3]
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.replace(" ", ",").split(",")):
            fields = left.split()
            mounts.append((fields[3], fields[4], kind == "cgroup2"))
    return mounts


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)[:1]).strip()
    return int(text) if text.isdigit() else None


def _stat(path: Path, key: str) -> int:
    return next((int(line.split()[1]) for line in _lines(path) if line.split()[:1] == [key]), 0)


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
