"""Thermal zones of Linux: the hottest that is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolkit.machine_root import machine_root
from toolkit.power.thermal import ZONES, read_thermal


def hottest(tmp_path: Path, *zones: tuple[str, str], **more: str) -> float | None:
    files = {f"{ZONES}/{path}": text for path, text in more.items()}
    for index, (kind, temp) in enumerate(zones):
        files |= {f"{ZONES}/thermal_zone{index}/type": f"{kind}\n", f"{ZONES}/thermal_zone{index}/temp": f"{temp}\n"}
    return read_thermal(machine_root(tmp_path, files=files)).temperature_c


def test_the_hottest_counts(tmp_path: Path) -> None:
    assert hottest(tmp_path, ("x86_pkg_temp", "61500"), ("acpitz", "27800")) == 61.5


def test_none_without_zones(tmp_path: Path) -> None:
    assert read_thermal(tmp_path).temperature_c is None


@pytest.mark.parametrize(("temp", "expected"), [("45", 45.0), ("45000", 45.0), ("1000", 1.0), ("-12000", -12.0), ("-5", -5.0)])
def test_millidegrees_and_degrees_are_told_apart(tmp_path: Path, temp: str, expected: float) -> None:
    assert hottest(tmp_path, ("cpu-thermal", temp)) == expected


@pytest.mark.parametrize("temp", ["0", "-274000", "-40001", "2147483647", "450", "", "abc", "12.5", "150001"])
def test_what_no_device_can_have_is_no_temperature(tmp_path: Path, temp: str) -> None:
    assert hottest(tmp_path, ("cpu-thermal", temp)) is None
    assert hottest(tmp_path, ("cpu-thermal", temp), ("skin", "31000")) == 31.0


@pytest.mark.parametrize("kind", ["soc", "pm8150b-ibat-lvl0", "vbat", "pm8150b-bcl-lvl1"])
def test_a_zone_of_volts_or_charge_is_no_temperature(tmp_path: Path, kind: str) -> None:
    assert hottest(tmp_path, (kind, "95000")) is None


def test_a_system_on_chip_is_one(tmp_path: Path) -> None:
    assert hottest(tmp_path, ("soc-thermal", "52000")) == 52.0


def test_a_zone_that_is_switched_off_is_not_read(tmp_path: Path) -> None:
    assert hottest(tmp_path, ("acpitz", "99000"), **{"thermal_zone0/mode": "disabled\n"}) is None


def test_cooling_devices_are_no_zones(tmp_path: Path) -> None:
    assert hottest(tmp_path, **{"cooling_device0/temp": "99000"}) is None
