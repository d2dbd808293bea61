"""How much memory a process may still take here: the least of what the kernel, its groups and the platform allow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from toolkit.units import format_bytes

ROOT = Path("/")
_UNLIMITED = 2**60  # cgroup v1 writes "no limit" as a number near 2^63


@dataclass(frozen=True)
class FreeMemory:
    """Bytes a process may still take, and which limit says so."""

    bytes: int
    limited_by: str


Reader = Callable[[Path], "FreeMemory | None"]


def free_memory(root: Path = ROOT, *, platform_readers: Sequence[Reader] | None = None) -> FreeMemory | None:
    """The least of all limits on resident memory: what the kernel calls available, every control group, the platform's own figure.

    Args:
        root: Where `proc` and `sys` are; a test gives a folder of its own.
        platform_readers: Asked besides; None: Android's, iOS's or macOS's where this is one.

    Returns:
        None where nothing tells.
    """
    readers = _platform_readers() if platform_readers is None else platform_readers
    found = [_available(root), _data_limit(root), *group_limits(root), *(read(root) for read in readers)]
    return min((limit for limit in found if limit is not None), key=lambda limit: limit.bytes, default=None)


def hard_limit(root: Path = ROOT) -> FreeMemory | None:
    """The tightest control group: beyond it the kernel kills, whatever else is free. None if there is none."""
    return min(group_limits(root), key=lambda limit: limit.bytes, default=None)


def free_address_space(root: Path = ROOT) -> FreeMemory | None:
    """What RLIMIT_AS (`ulimit -v`) leaves; mapped files count in full, resident or not. None without that limit."""
    return _under_limit(root, "Max address space", "VmSize", "the address space limit (ulimit -v)")


def total_memory_bytes(root: Path = ROOT) -> int | None:
    """RAM of the machine, whatever groups allow; None where nothing tells."""
    if (size := _meminfo(root, "MemTotal")) is not None:
        return size
    if sys.platform == "darwin":
        from toolkit.apple import sysctl_integer

        return sysctl_integer("hw.memsize")
    return None


def _available(root: Path) -> FreeMemory | None:
    """MemAvailable counts the page cache as free, because the kernel gives it back first (proc_meminfo(5))."""
    size = _meminfo(root, "MemAvailable")
    return None if size is None else FreeMemory(size, "free memory")


def _meminfo(root: Path, field: str) -> int | None:
    return next((size for name, size in _sizes(root / "proc/meminfo") if name == field), None)


def _data_limit(root: Path) -> FreeMemory | None:
    return _under_limit(root, "Max data size", "VmData", "the data size limit (ulimit -d)")


def _under_limit(root: Path, limit_name: str, used_field: str, limited_by: str) -> FreeMemory | None:
    """A soft limit of /proc/self/limits less what /proc/self/status says is used of it."""
    line = next((line for line in read_lines(root / "proc/self/limits") if line.startswith(limit_name)), "")
    soft = line.removeprefix(limit_name).split()[:1]
    used = next((size for name, size in _sizes(root / "proc/self/status") if name == used_field), None)
    if not soft or not soft[0].isdigit() or used is None:
        return None
    return FreeMemory(max(0, int(soft[0]) - used), f"{limited_by} of {format_bytes(int(soft[0]))}")


def group_limits(root: Path = ROOT) -> list[FreeMemory]:
    """What each memory control group of this process, version 1 or 2, and each of its parents still allows.

    A group allows its limit minus its working set.
    """
    return [
        FreeMemory(max(0, limit - held), f"the control group's memory limit of {format_bytes(limit)}")
        for limit, held in group_working_sets(root)
    ]


def group_working_sets(root: Path = ROOT) -> Iterator[tuple[int, int]]:
    """(limit, working set) in bytes of each of these groups that has a limit: usage without the page cache it would give back first."""
    for folder, is_v2 in group_folders(root):
        limit = read_number(folder / ("memory.max" if is_v2 else "memory.limit_in_bytes"))
        usage = read_number(folder / ("memory.current" if is_v2 else "memory.usage_in_bytes"))
        if limit is None or usage is None or limit >= _UNLIMITED:
            continue
        reclaimable = read_counter(folder / "memory.stat", "inactive_file" if is_v2 else "total_inactive_file") or 0
        yield limit, max(0, usage - reclaimable)


def group_folders(root: Path = ROOT, controller: str = "memory") -> list[tuple[Path, bool]]:
    """Every control group folder whose `controller` limits this process, its own first, with whether it is version 2."""
    own = _own_groups(root, controller)
    folders = []
    for mounted_path, mount_point, is_v2 in _group_mounts(root, controller):
        top = root / mount_point.lstrip("/")
        path = PurePosixPath(own.get(is_v2, "/"))
        # In a container the mount shows only a subtree, and the process's path may lie outside of what it shows.
        inner = path.relative_to(mounted_path) if path.is_relative_to(mounted_path) else PurePosixPath(".")
        folders += [(folder, is_v2) for folder in (top / inner, *(top / parent for parent in inner.parents))]
    return folders


def _own_groups(root: Path, controller: str) -> dict[bool, str]:
    groups = {}
    for line in read_lines(root / "proc/self/cgroup"):
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if not controllers or controller in controllers.split(","):
            groups[not controllers] = path
    return groups


def _group_mounts(root: Path, controller: str) -> list[tuple[str, str, bool]]:
    """(path inside the hierarchy, mount point, is version 2) of each mounted hierarchy that may have the controller."""
    mounts = []
    for line in read_lines(root / "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        kind, _, options = (right.split(" ", 2) + ["", ""])[:3]
        fields = left.split()
        if len(fields) > 4 and (kind == "cgroup2" or (kind == "cgroup" and controller in options.replace(" ", ",").split(","))):
            mounts.append((fields[3], fields[4], kind == "cgroup2"))
    return mounts


def _platform_readers() -> tuple[Reader, ...]:
    """Android's interpreter calls itself linux; python-for-android sets ANDROID_PRIVATE."""
    import os

    if os.environ.get("ANDROID_PRIVATE") or hasattr(sys, "getandroidapilevel"):
        from toolkit.android import free_memory_of_app

        return (free_memory_of_app,)
    if sys.platform in ("darwin", "ios"):
        from toolkit.apple import free_memory_of_process

        return (free_memory_of_process,)
    return ()


def read_lines(path: Path) -> list[str]:
    """Lines of a file of the kernel's; none at all where it is missing or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def read_counter(path: Path, key: str) -> int | None:
    """The number behind `key` in lines of "key number"; None where it is missing."""
    for line in read_lines(path):
        words = line.split()
        if len(words) == 2 and words[0] == key and words[1].isdigit():
            return int(words[1])
    return None


def _sizes(path: Path) -> Iterator[tuple[str, int]]:
    """Lines of "Name:   123 kB" as names and bytes."""
    for line in read_lines(path):
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            yield name, int(words[0]) * 1024


def read_number(path: Path) -> int | None:
    """The number in a file of one line; None for anything else, or one that is longer than a 64-bit one."""
    text = "".join(read_lines(path)[:1]).strip()
    return int(text) if text.isdecimal() and len(text) <= 20 else None
