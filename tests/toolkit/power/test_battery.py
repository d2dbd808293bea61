"""Batteries and chargers of Linux: what laptops, phones and boards show, and what broken ones do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolkit.machine_root import machine_root
from toolkit.power.battery import PROFILE, SUPPLIES, read_battery
from toolkit.power.reading import Reading


def supply(name: str, **fields: object) -> dict[str, str]:
    return {f"{SUPPLIES}/{name}/{field}": f"{value}\n" for field, value in fields.items()}


def read(tmp_path: Path, *supplies: dict[str, str], profile: str | None = None) -> Reading:
    files = {path: text for one in supplies for path, text in one.items()}
    return read_battery(machine_root(tmp_path, files=files | ({PROFILE: profile} if profile is not None else {})))


def test_a_machine_without_a_battery_tells_nothing(tmp_path: Path) -> None:
    assert read(tmp_path).tells_nothing
    assert read_battery(tmp_path / "nowhere").tells_nothing


def test_a_laptop_on_its_battery(tmp_path: Path) -> None:
    battery = supply("BAT0", type="Battery", status="Discharging", capacity=57, present=1, power_now=12_340_000)
    reading = read(tmp_path, supply("AC", type="Mains", online=0), battery, profile="low-power\n")
    assert reading == Reading(battery_share=0.57, is_plugged=False, is_low_power_mode=True, battery_power_w=12.34)


def test_a_phone_gives_amperes_and_volts_with_either_sign(tmp_path: Path) -> None:
    for sign in (1, -1):
        fields = {"type": "Battery", "status": "Discharging", "capacity": 80, "current_now": sign * 700_000, "voltage_now": 4_000_000}
        assert read(tmp_path, supply("battery", **fields)).battery_power_w == pytest.approx(2.8)


@pytest.mark.parametrize("status", ["Charging", "Full", "Not charging"])
def test_what_flows_while_it_is_plugged_is_not_what_work_costs(tmp_path: Path, status: str) -> None:
    reading = read(tmp_path, supply("BAT0", type="Battery", status=status, capacity=40, power_now=30_000_000))
    assert reading.is_plugged is True and reading.battery_power_w is None


def test_a_charger_too_weak_to_charge_still_counts_as_one(tmp_path: Path) -> None:
    battery = supply("BAT0", type="Battery", status="Discharging", capacity=40)
    assert read(tmp_path, supply("usb", type="USB_PD", online=1), battery).is_plugged is True


@pytest.mark.parametrize("status", ["Unknown", "", "Nonsense"])
def test_a_status_that_says_nothing_is_not_taken_for_unplugged(tmp_path: Path, status: str) -> None:
    assert read(tmp_path, supply("BAT0", type="Battery", status=status, capacity=40)).is_plugged is None


def test_two_batteries_are_weighed_by_what_they_hold(tmp_path: Path) -> None:
    small = supply("BAT0", type="Battery", status="Discharging", capacity=100, energy_full=10_000_000)
    large = supply("BAT1", type="Battery", status="Unknown", capacity=20, energy_full=30_000_000)
    assert read(tmp_path, small, large).battery_share == pytest.approx(0.4)


def test_two_that_cannot_be_weighed_count_as_the_emptier(tmp_path: Path) -> None:
    first = supply("BAT0", type="Battery", status="Discharging", capacity=90, energy_full=10_000_000)
    second = supply("BAT1", type="Battery", status="Discharging", capacity=30, charge_full=2_000_000)
    assert read(tmp_path, first, second).battery_share == 0.3


def test_power_of_one_of_two_is_not_that_of_the_device(tmp_path: Path) -> None:
    first = supply("BAT0", type="Battery", status="Discharging", capacity=90, power_now=5_000_000)
    second = supply("BAT1", type="Battery", status="Discharging", capacity=30)
    assert read(tmp_path, first, second).battery_power_w is None


def test_a_mouse_is_not_the_device(tmp_path: Path) -> None:
    mouse = supply("hid-1", type="Battery", scope="Device", status="Discharging", capacity=3)
    assert read(tmp_path, mouse).tells_nothing


def test_an_empty_bay_is_no_battery(tmp_path: Path) -> None:
    assert read(tmp_path, supply("BAT1", type="Battery", present=0, status="Unknown", capacity=0)).battery_share is None


@pytest.mark.parametrize("capacity", ["", "-1", "abc", "255", "9" * 40, "5 0", "٣"])
def test_a_nonsense_capacity_is_unknown(tmp_path: Path, capacity: str) -> None:
    assert read(tmp_path, supply("BAT0", type="Battery", status="Discharging", capacity=capacity)).battery_share is None


def test_a_gauge_a_little_above_full_is_full(tmp_path: Path) -> None:
    assert read(tmp_path, supply("BAT0", type="Battery", status="Full", capacity=101)).battery_share == 1.0


def test_charge_is_worked_out_where_no_percentage_is_given(tmp_path: Path) -> None:
    assert read(tmp_path, supply("BAT0", type="Battery", charge_now=500, charge_full=2000)).battery_share == 0.25
    assert read(tmp_path, supply("BAT0", type="Battery", charge_full=0)).battery_share is None


def test_a_battery_that_vanishes_between_two_looks_is_unknown(tmp_path: Path) -> None:
    root = machine_root(tmp_path, files=supply("BAT0", type="Battery", status="Discharging", capacity=57))
    assert read_battery(root).battery_share == 0.57
    for path in (tmp_path / SUPPLIES / "BAT0").iterdir():
        path.unlink()
    assert read_battery(root).tells_nothing


def test_files_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    (tmp_path / SUPPLIES / "BAT0" / "type").mkdir(parents=True)
    (tmp_path / SUPPLIES / "dangling").symlink_to(tmp_path / "gone")
    assert read_battery(tmp_path).tells_nothing


@pytest.mark.parametrize(("profile", "is_low"), [("low-power\n", True), ("balanced\n", False), ("performance", False), ("", None)])
def test_the_profile_says_whether_power_is_to_be_saved(tmp_path: Path, profile: str, is_low: bool | None) -> None:
    assert read(tmp_path, profile=profile).is_low_power_mode is is_low
