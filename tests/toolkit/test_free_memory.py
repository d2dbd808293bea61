from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.toolkit.machine_root import GIB, V1_MOUNTS, V2_MOUNT, machine_root, own_groups, own_limits, own_status, v1_group, v2_group
from toolkit.apple import free_memory_of_process, sysctl_integer, sysctl_text
from toolkit.free_memory import FreeMemory, free_address_space, free_memory, group_folders, hard_limit, read_counter, total_memory_bytes

ONLY_KERNEL: tuple[Any, ...] = ()


def free(root: Path) -> FreeMemory:
    found = free_memory(root, platform_readers=ONLY_KERNEL)
    assert found is not None
    return found


def test_what_the_kernel_calls_available_is_free_where_nothing_limits(tmp_path: Path) -> None:
    root = machine_root(tmp_path, available=3 * GIB)
    assert free(root) == FreeMemory(3 * GIB, "free memory")
    assert hard_limit(root) is None and total_memory_bytes(root) == 16 * GIB


@pytest.mark.parametrize("group_gib", [1, 2, 3, 5])
def test_the_least_limit_wins_whichever_it_is(tmp_path: Path, group_gib: int) -> None:
    files = own_groups("0::/app\n", V2_MOUNT) | v2_group("app", group_gib * GIB, 0)
    root = machine_root(tmp_path, available=2 * GIB + 4096, files=files)
    assert free(root).bytes == min(group_gib * GIB, 2 * GIB + 4096)
    assert ("control group" in free(root).limited_by) == (group_gib <= 2)


def test_both_versions_are_walked_up_to_the_top_at_the_same_time(tmp_path: Path) -> None:
    files = own_groups(
        "4:memory:/a/b\n1:cpu:/elsewhere\n0::/\n", V1_MOUNTS + "38 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    )
    files |= v1_group("a/b", 2**63 - 4096, GIB) | v1_group("a", 3 * GIB, 2 * GIB, inactive=GIB) | v1_group(".", 2**63 - 4096, 0)
    root = machine_root(tmp_path, files=files)
    assert free(root).bytes == 2 * GIB
    assert [folder.name for folder, is_v2 in group_folders(root) if not is_v2] == ["b", "a", "memory"]


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    root = machine_root(tmp_path, files=own_groups("0::/a\n", V2_MOUNT) | v2_group("a", GIB, 2 * GIB))
    assert free(root).bytes == 0
    assert hard_limit(root) == free(root)


def test_a_limit_on_data_counts_what_is_used_of_it(tmp_path: Path) -> None:
    root = machine_root(
        tmp_path, files=own_limits(Max_data_size=GIB, Max_address_space="unlimited") | own_status(VmData=2**18, VmSize=2**19)
    )
    assert free(root).bytes == GIB - 2**28
    assert "ulimit -d" in free(root).limited_by
    assert free_address_space(root) is None


def test_a_limit_on_address_space_is_told_apart_because_mapped_files_count_in_it(tmp_path: Path) -> None:
    root = machine_root(tmp_path, files=own_limits(Max_address_space=4 * GIB) | own_status(VmSize=2**20))
    assert free(root) == FreeMemory(8 * GIB, "free memory")
    space = free_address_space(root)
    assert space is not None and space.bytes == 3 * GIB and "ulimit -v" in space.limited_by


def test_this_process_sees_its_own_address_space_limit() -> None:
    resource = pytest.importorskip("resource", reason="limits of a process are POSIX")
    old = resource.getrlimit(resource.RLIMIT_AS)
    if not Path("/proc/self/limits").exists() or old[0] != resource.RLIM_INFINITY:
        pytest.skip("needs Linux without a limit")
    assert free_address_space() is None
    try:
        resource.setrlimit(resource.RLIMIT_AS, (64 * GIB, old[1]))
        space = free_address_space()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)
    assert space is not None and 0 < space.bytes < 64 * GIB


def test_nothing_is_invented_where_nothing_tells(tmp_path: Path) -> None:
    assert free_memory(tmp_path, platform_readers=ONLY_KERNEL) is None
    if sys.platform == "linux":
        assert total_memory_bytes(tmp_path) is None


def test_a_platform_that_kills_earlier_than_the_kernel_is_believed(tmp_path: Path) -> None:
    root = machine_root(tmp_path, available=4 * GIB)
    readers = [lambda root: FreeMemory(GIB, "the system's limit for this app"), lambda root: None]
    assert free_memory(root, platform_readers=readers) == FreeMemory(GIB, "the system's limit for this app")


class FakeLibrary:
    """A C library with some of Apple's calls."""

    def __init__(self, *, numbers: dict[str, int], texts: dict[str, str] | None = None, available: int | None = None) -> None:
        self.numbers, self.texts = numbers, texts or {}
        if available is not None:
            self.os_proc_available_memory = type("Call", (), {"__call__": lambda _: available})()

    def sysctlbyname(self, name: bytes, value: Any, size: Any, new: None, new_size: Any) -> int:
        asked = name.decode()
        if asked in self.texts:
            value.value = self.texts[asked].encode()
            return 0
        if asked not in self.numbers:
            return -1
        value._obj.value = self.numbers[asked]
        return 0


def test_on_ios_the_systems_own_limit_counts() -> None:
    library = FakeLibrary(numbers={"hw.memsize": 8 * GIB, "kern.memorystatus_level": 50}, available=GIB)
    assert free_memory_of_process(Path("/"), library=lambda: library) == FreeMemory(GIB, "the system's limit for this app")


def test_on_macos_the_free_share_of_its_memory_counts() -> None:
    library = FakeLibrary(numbers={"hw.memsize": 8 * GIB, "kern.memorystatus_level": 25}, texts={"machdep.cpu.brand_string": "Apple M4"})
    assert free_memory_of_process(Path("/"), library=lambda: library) == FreeMemory(2 * GIB, "free memory")
    assert sysctl_integer("hw.memsize", library=lambda: library) == 8 * GIB
    assert sysctl_text("machdep.cpu.brand_string", library=lambda: library) == "Apple M4"
    assert free_memory_of_process(Path("/"), library=lambda: FakeLibrary(numbers={})) is None


@pytest.fixture
def jnius(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyjnius on a phone with 1000 MB available and a threshold of 216 MB, seen from a service."""
    info = types.SimpleNamespace(availMem=0, threshold=0)

    def fill(target: Any) -> None:
        target.availMem, target.threshold = 1_000_000_000, 216_000_000

    service = types.SimpleNamespace(getSystemService=lambda name: types.SimpleNamespace(getMemoryInfo=fill) if name == "activity" else None)
    classes = {
        "org.kivy.android.PythonActivity": types.SimpleNamespace(mActivity=None),
        "org.kivy.android.PythonService": types.SimpleNamespace(mService=service),
        "android.app.ActivityManager$MemoryInfo": lambda: info,
    }
    module = types.ModuleType("jnius")
    module.autoclass = classes.__getitem__  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jnius", module)
    monkeypatch.setenv("ANDROID_PRIVATE", "/data/user/0/app/files")


def test_on_android_what_is_above_the_low_memory_threshold_is_free(tmp_path: Path, jnius: None) -> None:
    root = machine_root(tmp_path, available=4 * GIB)
    assert free_memory(root) == FreeMemory(784_000_000, "Android's low-memory threshold")


def test_outside_of_an_app_android_has_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDROID_PRIVATE", "/data")
    monkeypatch.setitem(sys.modules, "jnius", None)
    assert free_memory(machine_root(tmp_path, available=GIB)) == FreeMemory(GIB, "free memory")


@given(st.text(), st.text(), st.text())
def test_whatever_the_kernels_files_hold_reading_them_never_fails(meminfo: str, cgroup: str, mounts: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        files = {"proc/meminfo": meminfo, "proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts, "proc/self/limits": meminfo}
        root = machine_root(Path(folder), available=None, files={name: text.replace("\r", "") for name, text in files.items()})
        found = free_memory(root, platform_readers=ONLY_KERNEL)
        assert found is None or found.bytes >= 0


def test_a_counter_is_read_by_its_whole_name(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert read_counter(tmp_path / "events", "oom_kill") == 3
    assert read_counter(tmp_path / "events", "oom") is None
