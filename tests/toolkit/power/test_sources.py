"""All sources together."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toolkit.machine_root import machine_root
from toolkit.power.battery import SUPPLIES
from toolkit.power.rapl import RaplCounter
from toolkit.power.reading import Reading, merged
from toolkit.power.sources import DeviceReader, device_readers, read_device
from toolkit.power.thermal import ZONES


def test_the_worse_of_two_counts_and_unknown_is_not_zero() -> None:
    first = Reading(battery_share=0.5, temperature_c=40.0, is_low_power_mode=False, is_plugged=False)
    second = Reading(battery_share=0.3, temperature_c=60.0, is_low_power_mode=True, is_plugged=True, thermal_status=0)
    worst = Reading(battery_share=0.3, temperature_c=60.0, is_low_power_mode=True, is_plugged=False, thermal_status=0)
    assert merged([first, second]) == worst
    assert merged([]) == Reading()
    assert Reading(thermal_status=0).as_dict() == {"thermal_status": 0}


def test_linux_asks_battery_heat_and_pressure_below_one_root(tmp_path: Path) -> None:
    files = {
        f"{SUPPLIES}/BAT0/type": "Battery\n",
        f"{SUPPLIES}/BAT0/capacity": "40\n",
        f"{SUPPLIES}/BAT0/status": "Discharging\n",
        f"{ZONES}/thermal_zone0/temp": "71000\n",
        "proc/pressure/memory": "some avg10=1.00 avg60=0.00 avg300=0.00 total=0\n",
    }
    reading = DeviceReader(device_readers(machine_root(tmp_path, files=files), "linux"))()
    assert reading == Reading(battery_share=0.4, is_plugged=False, temperature_c=71.0, memory_pressure=0.01)


@pytest.mark.parametrize("system", ["android", "ios", "darwin", "windows", "plan9"])
def test_the_readers_of_other_platforms_tell_nothing_here(system: str, tmp_path: Path) -> None:
    assert DeviceReader(device_readers(tmp_path, system))().tells_nothing


def test_this_machine_can_be_read() -> None:
    assert isinstance(read_device(), Reading)


def test_a_reader_that_fails_is_left_out_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Reading:
        raise RuntimeError("a driver's surprise")

    reader = DeviceReader([broken, lambda: Reading(thermal_status=2)])
    with caplog.at_level(logging.WARNING):
        assert [reader(), reader()] == [Reading(thermal_status=2)] * 2
    assert len(caplog.records) == 1 and "broken" in caplog.text


KERNEL_FILES = [
    *(f"{SUPPLIES}/BAT0/{name}" for name in ("type", "scope", "present", "status", "capacity", "power_now", "current_now", "voltage_now")),
    *(f"{SUPPLIES}/BAT0/{name}" for name in ("energy_full", "energy_now", "charge_full", "charge_now")),
    *(f"{SUPPLIES}/AC/{name}" for name in ("type", "online")),
    "sys/firmware/acpi/platform_profile",
    *(f"{ZONES}/thermal_zone0/{name}" for name in ("type", "mode", "temp")),
    *(f"proc/pressure/{name}" for name in ("memory", "cpu")),
    *("proc/self/cgroup", "proc/self/mountinfo", "sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.stat"),
    *(f"sys/class/powercap/intel-rapl:0/{name}" for name in ("name", "energy_uj", "max_energy_range_uj")),
]
WORDS = [
    "Battery",
    "Mains",
    "Discharging",
    "Charging",
    "psys",
    "package-0",
    "0",
    "1",
    "-1",
    "57",
    "99999999999999999999999",
    "some avg10=5.0",
]
WORDS += ["some avg10=nan", "0::/", "24 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "inactive_file 5", "max", "low-power", ""]
CONTENT = st.one_of(
    st.sampled_from(WORDS).map(str.encode), st.binary(max_size=40), st.integers(-(10**13), 10**13).map(lambda n: b"%d\n" % n)
)


@given(st.dictionaries(st.sampled_from(KERNEL_FILES), CONTENT, max_size=30))
@settings(max_examples=200, deadline=None)
def test_whatever_the_kernel_says_readings_are_sane_and_nothing_raises(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        readings = [reader() for reader in device_readers(root, "linux")]  # not through DeviceReader, which catches
        energy_j = RaplCounter(root).energy_j()
    reading = merged(readings)
    for share in (reading.battery_share, reading.memory_pressure, reading.memory_used_share, reading.cpu_pressure):
        assert share is None or 0 <= share <= 1
    assert reading.temperature_c is None or -40 <= reading.temperature_c <= 150
    assert reading.battery_power_w is None or 0 < reading.battery_power_w <= 500
    assert energy_j is None or energy_j >= 0
