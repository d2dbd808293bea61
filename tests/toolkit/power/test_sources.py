"""All sources together."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.toolkit.machine_root import machine_root
from toolkit.power.battery import SUPPLIES
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
