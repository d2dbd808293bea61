from pathlib import Path

import pytest

from converters.resources import FreeMemory, check_disk, choose_memory_path, free_memory, hard_limit
from converters.targets.base import ConvertOptions, Estimate
from toolkit.errors import BudgetError

GIB = 2**30
OPTIONS = ConvertOptions()


def machine(root: Path, *, available: int, cgroup: str = "", mounts: str = "", files: dict[str, str] | None = None) -> Path:
    """A root folder with the /proc and /sys files of a machine."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: {available // 1024} kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text(mounts)
    for name, text in (files or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2_MOUNT = "24 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n35 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"


def v2_group(path: str, limit: str, usage: int, inactive: int) -> dict[str, str]:
    return {
        f"sys/fs/cgroup/{path}/memory.max": f"{limit}\n",
        f"sys/fs/cgroup/{path}/memory.current": f"{usage}\n",
        f"sys/fs/cgroup/{path}/memory.stat": f"anon 5\ninactive_file {inactive}\nactive_file 7\n",
    }


def test_without_groups_the_kernel_decides(tmp_path):
    root = machine(tmp_path, available=3 * GIB)
    assert free_memory(root) == FreeMemory(3 * GIB, "free memory")
    assert hard_limit(root) is None


def test_a_version_2_group_leaves_limit_minus_working_set(tmp_path):
    root = machine(tmp_path, available=8 * GIB, cgroup="0::/a/b\n", mounts=V2_MOUNT, files=v2_group("a/b", str(2 * GIB), GIB, GIB // 2))
    assert free_memory(root).bytes == 2 * GIB - GIB // 2
    assert "2 GiB" in free_memory(root).limited_by


def test_a_parent_group_limits_its_children(tmp_path):
    files = v2_group("a/b", "max", GIB, 0) | v2_group("a", str(GIB), GIB // 4, 0)
    root = machine(tmp_path, available=8 * GIB, cgroup="0::/a/b\n", mounts=V2_MOUNT, files=files)
    assert free_memory(root).bytes == GIB - GIB // 4


def test_free_memory_wins_when_it_is_less_than_the_group_leaves(tmp_path):
    root = machine(tmp_path, available=GIB, cgroup="0::/a\n", mounts=V2_MOUNT, files=v2_group("a", str(4 * GIB), 0, 0))
    assert free_memory(root) == FreeMemory(GIB, "free memory")
    limit = hard_limit(root)
    assert limit is not None and limit.bytes == 4 * GIB


def test_a_version_1_group_is_read_too(tmp_path):
    files = {
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(3 * GIB),
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(2 * GIB),
        "sys/fs/cgroup/memory/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "0",
    }
    root = machine(tmp_path, available=8 * GIB, cgroup="4:memory:/job\n1:cpu:/other\n", mounts=V1_MOUNT, files=files)
    assert free_memory(root).bytes == 2 * GIB


def test_inside_a_container_the_mounted_subtree_is_the_group(tmp_path):
    mount = "24 23 0:28 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    for cgroup in ("0::/docker/abc\n", "0::/\n"):
        root = machine(
            tmp_path / cgroup.strip().replace("/", "_"), available=8 * GIB, cgroup=cgroup, mounts=mount, files=v2_group(".", str(GIB), 0, 0)
        )
        assert free_memory(root).bytes == GIB


def test_a_group_over_its_limit_leaves_nothing(tmp_path):
    root = machine(tmp_path, available=8 * GIB, cgroup="0::/a\n", mounts=V2_MOUNT, files=v2_group("a", str(GIB), 2 * GIB, 0))
    assert free_memory(root).bytes == 0


def test_this_machine_has_some_free_memory():
    assert free_memory().bytes > 0


def estimate(options: ConvertOptions) -> Estimate:
    """4 GiB, lean 3 GiB, at a context length of 2048; half is fixed. 1 GiB when warm."""
    return Estimate(0, (GIB + GIB * options.context_length // 2048) * (3 if options.is_lean else 4) // 2, GIB)


def choose(
    limit_gib: float, *, is_warm: bool = False, max_memory_gib: float | None = None, hard_gib: float | None = None
) -> ConvertOptions:
    return choose_memory_path(
        estimate,
        OPTIONS,
        is_warm=is_warm,
        max_memory_bytes=None if max_memory_gib is None else int(max_memory_gib * GIB),
        free=FreeMemory(int(limit_gib * GIB), "free memory"),
        hard=None if hard_gib is None else FreeMemory(int(hard_gib * GIB), "the control group's memory limit"),
    )


def test_enough_memory_takes_the_fast_path():
    assert not choose(4).is_lean


def test_less_memory_takes_the_lean_path():
    assert choose(3.5).is_lean and choose(3).is_lean


def test_too_little_memory_is_refused_with_both_figures():
    with pytest.raises(BudgetError) as caught:
        choose(2.9)
    assert "3 GiB" in caught.value.why and "2.9 GiB" in caught.value.why
    assert caught.value.exit_code == 3


def test_the_fix_names_a_context_that_fits_and_only_then():
    with pytest.raises(BudgetError) as caught:
        choose(2.5)
    assert "--context 1024 (about 2.25 GiB)" in caught.value.fix
    with pytest.raises(BudgetError) as caught:
        choose(1.0)
    assert "--context" not in caught.value.fix


def test_the_settings_of_the_fix_do_fit():
    assert choose(2.5, max_memory_gib=3072 / 1024).is_lean
    with pytest.raises(BudgetError, match="--max-memory 3072MiB"):
        choose(2.5)


def test_a_cached_float_model_needs_less():
    assert not choose(1, is_warm=True).is_lean
    with pytest.raises(BudgetError):
        choose(1, is_warm=False)


def test_max_memory_refuses_though_there_is_more():
    with pytest.raises(BudgetError, match="--max-memory leaves 2 GiB"):
        choose(100, max_memory_gib=2)


def test_max_memory_overrides_a_guess_but_not_a_control_group():
    assert not choose(1, max_memory_gib=5).is_lean
    with pytest.raises(BudgetError, match="control group"):
        choose(1, max_memory_gib=5, hard_gib=2)


MIB = 2**20


def test_disk_needs_of_one_disk_are_added_up(tmp_path):
    needs = {tmp_path / "work": 100 * MIB, tmp_path / "out/deeper": 50 * MIB}
    check_disk(needs, free_bytes=lambda folder: 214 * MIB)
    with pytest.raises(BudgetError) as caught:
        check_disk(needs, free_bytes=lambda folder: 213 * MIB)
    assert "100 MiB" in caught.value.why and "50 MiB" in caught.value.why and "213 MiB" in caught.value.why


def test_disk_needs_of_two_disks_are_not(tmp_path):
    if not Path("/dev/shm").is_dir() or Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second filesystem here")
    check_disk({tmp_path: 100 * MIB, Path("/dev/shm/none"): 100 * MIB}, free_bytes=lambda folder: 170 * MIB)
