from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.toolkit.machine_root import V2_MOUNT, machine_root, own_groups
from toolkit.device.cores import MOST_THREADS, Cores, cpu_quota, parse_cpu_list, probe_cores

CPU = "sys/devices/system/cpu"


def phone(root: Path) -> Path:
    """A phone with one prime, three middle and four small cores."""
    capacities = [254, 254, 254, 254, 871, 871, 871, 1024]
    return machine_root(root, files={f"{CPU}/cpu{cpu}/cpu_capacity": f"{value}\n" for cpu, value in enumerate(capacities)})


def laptop(root: Path, *, frequencies: list[int]) -> Path:
    """Two hardware threads a core."""
    files = {}
    for cpu, frequency in enumerate(frequencies):
        first = cpu - cpu % 2
        files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = f"{first}-{first + 1}\n"
        files[f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq"] = f"{frequency}\n"
    return machine_root(root, files={**files, f"{CPU}/online": f"0-{len(frequencies) - 1}\n"})


def test_small_cores_of_a_phone_are_left_out(tmp_path: Path) -> None:
    cores = probe_cores(phone(tmp_path), allowed=range(8))
    assert cores == Cores(n_logical=8, n_physical=8, n_big=4, big_cpus=(4, 5, 6, 7))
    assert cores.best_threads == 4


def test_a_process_confined_to_small_cores_uses_them(tmp_path: Path) -> None:
    cores = probe_cores(phone(tmp_path), allowed=[0, 1, 2])
    assert cores == Cores(n_logical=3, n_physical=3, n_big=3) and cores.best_threads == 3


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    cores = probe_cores(laptop(tmp_path, frequencies=[4_000_000] * 4))
    assert cores == Cores(n_logical=4, n_physical=2, n_big=2) and cores.best_threads == 2


def test_slower_cores_are_small_where_no_capacity_is_told_and_a_boost_bin_is_none(tmp_path: Path) -> None:
    mixed = probe_cores(laptop(tmp_path / "mixed", frequencies=[5_000_000] * 4 + [3_600_000] * 4))
    assert (mixed.n_physical, mixed.n_big, mixed.big_cpus) == (4, 2, (0, 1, 2, 3))
    binned = probe_cores(laptop(tmp_path / "binned", frequencies=[5_000_000] * 2 + [4_700_000] * 6))
    assert (binned.n_physical, binned.n_big, binned.big_cpus) == (4, 4, ())


def test_many_cores_are_not_all_used(tmp_path: Path) -> None:
    assert probe_cores(laptop(tmp_path, frequencies=[3_000_000] * 64)).best_threads == MOST_THREADS


@pytest.mark.parametrize(("quota", "threads"), [("max 100000", 2), ("150000 100000", 1), ("50000 100000", 1), ("400000 100000", 2)])
def test_a_groups_cpu_time_limits_threads(tmp_path: Path, quota: str, threads: int) -> None:
    root = laptop(tmp_path, frequencies=[3_000_000] * 4)
    machine_root(root, files=own_groups("0::/job\n", V2_MOUNT) | {"sys/fs/cgroup/job/cpu.max": quota})
    assert probe_cores(root).best_threads == threads


def test_a_version_1_quota_is_read_too(tmp_path: Path) -> None:
    mounts = "36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    folder = "sys/fs/cgroup/cpu/job"
    files = {f"{folder}/cpu.cfs_quota_us": "250000", f"{folder}/cpu.cfs_period_us": "100000", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1"}
    assert cpu_quota(machine_root(tmp_path, files=own_groups("1:cpu:/job\n", mounts) | files)) == 2.5


def test_a_machine_that_tells_nothing_has_the_cpus_it_has(tmp_path: Path) -> None:
    assert probe_cores(tmp_path).n_logical == os.cpu_count()


def test_this_machine_has_at_least_one_core() -> None:
    cores = probe_cores()
    assert 1 <= cores.n_big <= cores.n_physical <= cores.n_logical <= (os.cpu_count() or 1)


@pytest.mark.parametrize(("text", "cpus"), [("0-3,6\n", [0, 1, 2, 3, 6]), ("5", [5]), ("", []), ("a-b", []), ("0-", [0]), ("3-1", [])])
def test_cpu_lists_are_read_as_the_kernel_writes_them(text: str, cpus: list[int]) -> None:
    assert parse_cpu_list(text) == cpus


@given(st.text())
def test_any_text_is_a_cpu_list_or_none(text: str) -> None:
    assert all(cpu >= 0 for cpu in parse_cpu_list(text))
