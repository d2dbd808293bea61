"""PSI and control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolkit.machine_root import V1_MOUNTS, V2_MOUNT, machine_root, own_groups, v1_group, v2_group
from toolkit.power.pressure import read_pressure, waiting_share
from toolkit.power.reading import Reading

PSI = "some avg10=12.50 avg60=3.00 avg300=0.10 total=31227606\nfull avg10=4.00 avg60=1.00 avg300=0.00 total=9557117\n"


def read(tmp_path: Path, files: dict[str, str]) -> Reading:
    return read_pressure(machine_root(tmp_path, files=files))


def test_the_share_of_ten_seconds_in_which_something_waited(tmp_path: Path) -> None:
    reading = read(tmp_path, {"proc/pressure/memory": PSI, "proc/pressure/cpu": PSI.replace("12.50", "50.00")})
    assert (reading.memory_pressure, reading.cpu_pressure) == (0.125, 0.5)


def test_nothing_where_the_kernel_has_no_psi(tmp_path: Path) -> None:
    assert read(tmp_path, {}).tells_nothing


@pytest.mark.parametrize(
    "text", ["", "some", "some avg10=", "some avg10=nan", "some avg60=3", "full avg10=3", "some avg10=-1", "some avg10=1e9"]
)
def test_what_is_no_figure_is_unknown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "memory"
    path.write_text(text)
    assert waiting_share(path) is None


def test_a_version_2_group_may_be_worse_off_than_the_machine(tmp_path: Path) -> None:
    files = own_groups("0::/app\n", V2_MOUNT) | v2_group("app", 1000, 950, inactive=100) | {"proc/pressure/memory": PSI}
    files["sys/fs/cgroup/app/memory.pressure"] = PSI.replace("12.50", "40.00")
    assert read(tmp_path, files) == Reading(memory_pressure=0.4, memory_used_share=0.85)


def test_a_version_1_group_tells_how_full_it_is(tmp_path: Path) -> None:
    files = own_groups("4:memory:/job\n", V1_MOUNTS) | v1_group("job", 1000, 990, inactive=40)
    assert read(tmp_path, files) == Reading(memory_used_share=0.95)


def test_a_group_without_a_limit_tells_nothing(tmp_path: Path) -> None:
    files = own_groups("0::/app\n", V2_MOUNT) | v2_group("app", "max", 950)
    assert read(tmp_path, files).memory_used_share is None
    files = own_groups("4:memory:/job\n", V1_MOUNTS) | v1_group("job", 2**63 - 4096, 990)
    assert read(tmp_path / "v1", files).memory_used_share is None


def test_a_group_a_little_over_its_limit_is_full(tmp_path: Path) -> None:
    files = own_groups("0::/app\n", V2_MOUNT) | v2_group("app", 1000, 5000)
    assert read(tmp_path, files).memory_used_share == 1.0
