from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.toolkit.machine_root import GIB, machine_root
from toolkit.device.accelerators import Accelerator
from toolkit.device.cores import Cores
from toolkit.device.profile import Device, probe_device
from toolkit.device.profile_file import load_device, read_device
from toolkit.errors import FormatError, UsageError
from toolkit.free_memory import FreeMemory

PIXEL = b"""
name = "Pixel 8"
system = "android"
machine = "aarch64"
ram = "8GiB"
free_ram = "3GiB"
cores = 9
big_cores = 5
isa = ["neon", "lse", "dotprod", "i8mm"]
accelerators = ["gpu: Mali-G715", "npu"]
"""


def test_a_device_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "pixel.toml").write_bytes(PIXEL)
    assert load_device(tmp_path / "pixel.toml") == Device(
        name="Pixel 8",
        system="android",
        machine="aarch64",
        total_memory_bytes=8 * GIB,
        free_memory=FreeMemory(3 * GIB, "free_ram of the device file"),
        cores=Cores(9, 9, 5),
        isa=("neon", "lse", "dotprod", "i8mm"),
        accelerators=(Accelerator("gpu", "Mali-G715"), Accelerator("npu", "npu")),
    )


def test_ram_and_cores_are_all_that_a_file_must_say() -> None:
    device = read_device(b'ram = "2GiB"\ncores = 4\n')
    assert device.free_memory == FreeMemory(2 * GIB, "ram of the device file")
    assert (device.cores.best_threads, device.isa, device.accelerators) == (4, None, ())


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (b'ram = "8GB"\ncores = 4', "ambiguous"),
        (b"cores = 4", "lacks ram"),
        (b'ram = "8GiB"', "cores"),
        (b'ram = "8GiB"\ncores = 0', "cores"),
        (b'ram = "8GiB"\ncores = 4\nbig_cores = 5', "big_cores is 5"),
        (b'ram = "2GiB"\nfree_ram = "3GiB"\ncores = 4', "more than ram"),
        (b'ram = "2GiB"\ncores = 4\nisa = ["lsd"]', "lsd"),
        (b'ram = "2GiB"\ncores = 4\naccelerators = ["tpu"]', "tpu"),
        (b'ram = "2GiB"\ncores = 4\nsystem = "symbian"', "symbian"),
        (b'ram = "2GiB"\ncores = 4\nbattery = 1', "battery"),
        (b"ram = [[", "no TOML"),
        (b"\xff", "no TOML"),
        (b"#" * 70_000, "larger"),
    ],
)
def test_a_file_that_describes_no_device_is_refused_with_the_field(changed: bytes, named: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_device(changed)
    assert named in caught.value.why


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="phone.toml"):
        load_device(tmp_path / "phone.toml")


FIELDS = st.dictionaries(st.sampled_from(["ram", "cores", "isa", "name"]), st.integers() | st.text())


@given(st.binary(max_size=300) | FIELDS.map(lambda fields: "\n".join(f"{k} = {json.dumps(v)}" for k, v in fields.items()).encode()))
def test_any_bytes_are_a_device_or_refused(data: bytes) -> None:
    try:
        assert read_device(data).cores.best_threads >= 1
    except FormatError:
        pass


def test_a_probed_machine_says_only_what_it_can_see(tmp_path: Path) -> None:
    device = probe_device(machine_root(tmp_path, available=GIB))
    assert device.free_memory == FreeMemory(GIB, "free memory") and device.total_memory_bytes == 16 * GIB
    assert (device.isa, device.accelerators, device.is_this_one) == (None, (), False)


def test_this_machine_can_be_said_as_json() -> None:
    device = probe_device()
    assert device.is_this_one
    data = json.loads(json.dumps(device.as_dict()))
    assert data["free_memory_bytes"] > 0 and data["best_threads"] >= 1 and data["cores"]["n_logical"] >= 1


def test_memory_and_cores_can_be_supposed() -> None:
    device = read_device(PIXEL).with_memory(GIB, "--ram").with_cores(2)
    assert device.free_memory == FreeMemory(GIB, "--ram") and device.cores == Cores(2, 2, 2)
    with pytest.raises(UsageError, match="0 cores"):
        device.with_cores(0)
