"""Which CPUs are worth computing on: physical cores, and of these the big ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from toolkit.free_memory import ROOT, group_folders, read_lines, read_number

BIG_BY_CAPACITY = 0.6  # of the strongest core's cpu_capacity: takes prime and middle cores of phones, leaves the small ones
BIG_BY_FREQUENCY = 0.8  # of the fastest core's clock, where no capacity is told: same-speed cores differ by their boost only
MOST_THREADS = 4  # decoding is bound by memory; more threads than this rarely help and often hurt


@dataclass(frozen=True)
class Cores:
    """CPUs a process may use.

    Args:
        n_logical: CPUs the system shows, hardware threads of one core counted apart.
        n_physical: Cores behind them.
        n_big: Physical cores that are not small ones; all where cores are alike.
        big_cpus: Logical CPUs of the big cores; empty where cores are alike, or where nothing tells.
        quota: CPUs' worth of time a control group allows; None without a limit.
    """

    n_logical: int
    n_physical: int
    n_big: int
    big_cpus: tuple[int, ...] = ()
    quota: float | None = None

    @property
    def best_threads(self) -> int:
        """Threads to compute with: one a big core, no more than the quota pays for, at most `MOST_THREADS`."""
        paid = self.n_big if self.quota is None else max(1, int(self.quota))
        return max(1, min(self.n_big, paid, MOST_THREADS))


def probe_cores(root: Path = ROOT, *, allowed: Iterable[int] | None = None) -> Cores:
    """Read the topology of the CPUs this process may use.

    Args:
        root: Where `proc` and `sys` are.
        allowed: CPUs it may use; None asks the scheduler, or where that cannot be asked takes all that are online.
    """
    if root == ROOT and sys.platform in ("darwin", "ios"):
        return _apple_cores()
    cpus = sorted(_allowed(root) if allowed is None else allowed)
    by_core: dict[object, list[int]] = {}
    for cpu in cpus:
        by_core.setdefault(_core_of(root, cpu), []).append(cpu)
    strength = _strengths(root, cpus)
    cores = list(by_core.values())
    big = [core for core in cores if max(strength[cpu] for cpu in core) >= 1.0]
    is_mixed = len(big) < len(cores)
    big_cpus = tuple(sorted(cpu for core in big for cpu in core)) if is_mixed else ()
    return Cores(max(1, len(cpus)), max(1, len(cores)), max(1, len(big)), big_cpus, cpu_quota(root))


def _allowed(root: Path) -> list[int]:
    if root == ROOT and hasattr(os, "sched_getaffinity"):
        return list(os.sched_getaffinity(0))
    online = "".join(read_lines(root / "sys/devices/system/cpu/online")[:1])
    return parse_cpu_list(online) or list(range(os.cpu_count() or 1))


def parse_cpu_list(text: str) -> list[int]:
    """CPUs of the kernel's list format, like `0-3,6`; nothing where it is none (cpuset(7), List Format)."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) - int(first) > 4096:
            return []
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def _core_of(root: Path, cpu: int) -> object:
    """What CPUs of one physical core have in common; the CPU itself where the kernel does not tell."""
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):
        if lines := read_lines(folder / name):
            return lines[0].strip()
    return cpu


def _strengths(root: Path, cpus: list[int]) -> dict[int, float]:
    """Each CPU's strength over what makes a big core: 1.0 and more is big."""
    for name, share in (("cpu_capacity", BIG_BY_CAPACITY), ("cpufreq/cpuinfo_max_freq", BIG_BY_FREQUENCY)):
        told = {cpu: read_number(root / f"sys/devices/system/cpu/cpu{cpu}/{name}") for cpu in cpus}
        if known := [value for value in told.values() if value]:
            return {cpu: (value or max(known)) / (share * max(known)) for cpu, value in told.items()}
    return dict.fromkeys(cpus, 1.0)


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time the tightest control group allows (cpu.max, or cpu.cfs_quota_us over cpu.cfs_period_us)."""
    quotas = []
    for folder, is_v2 in group_folders(root, "cpu"):
        if is_v2:
            words = "".join(read_lines(folder / "cpu.max")[:1]).split()
        else:
            words = ["".join(read_lines(folder / name)[:1]).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _apple_cores() -> Cores:
    """perflevel0 are the performance cores; older Macs have one kind only."""
    from toolkit.apple import sysctl_integer

    n_logical = sysctl_integer("hw.logicalcpu") or os.cpu_count() or 1
    n_physical = sysctl_integer("hw.physicalcpu") or n_logical
    return Cores(n_logical, n_physical, sysctl_integer("hw.perflevel0.physicalcpu") or n_physical)
