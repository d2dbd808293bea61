"""Folders that stand in for /proc and /sys of other machines."""

from __future__ import annotations

from pathlib import Path

GIB = 2**30
V1_MOUNTS = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
V2_MOUNT = "24 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"


def machine_root(root: Path, *, available: int | None = 8 * GIB, files: dict[str, str] | None = None) -> Path:
    """A root folder with a /proc/meminfo that has `available` bytes free, and further files by their path below it."""
    told = {}
    if available is not None:
        told["proc/meminfo"] = f"MemTotal: {16 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {available // 1024} kB\n"
    for name, text in {**told, **(files or {})}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def v2_group(path: str, limit: int | str, usage: int, inactive: int = 0) -> dict[str, str]:
    """Files of one version 2 group."""
    return {
        f"sys/fs/cgroup/{path}/memory.max": f"{limit}\n",
        f"sys/fs/cgroup/{path}/memory.current": f"{usage}\n",
        f"sys/fs/cgroup/{path}/memory.stat": f"anon 5\ninactive_file {inactive}\nactive_file 7\n",
    }


def v1_group(path: str, limit: int, usage: int, inactive: int = 0) -> dict[str, str]:
    """Files of one version 1 group."""
    return {
        f"sys/fs/cgroup/memory/{path}/memory.limit_in_bytes": f"{limit}\n",
        f"sys/fs/cgroup/memory/{path}/memory.usage_in_bytes": f"{usage}\n",
        f"sys/fs/cgroup/memory/{path}/memory.stat": f"inactive_file 1\ntotal_inactive_file {inactive}\n",
    }


def own_groups(cgroup: str, mounts: str) -> dict[str, str]:
    """Which groups the process is in, and where the kernel shows them."""
    return {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts}


def own_limits(**soft: int | str) -> dict[str, str]:
    """/proc/self/limits with soft limits by name, spaces written as underscores."""
    lines = [f"{name.replace('_', ' '):<26}{value:<21}unlimited            bytes" for name, value in soft.items()]
    return {"proc/self/limits": "Limit                     Soft Limit           Hard Limit           Units\n" + "\n".join(lines) + "\n"}


def own_status(**sizes_kb: int) -> dict[str, str]:
    """/proc/self/status with sizes in kB."""
    return {"proc/self/status": "Name:\tpython\n" + "".join(f"{name}:\t{size} kB\n" for name, size in sizes_kb.items())}
