"""Energy counters of x86 processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolkit.machine_root import machine_root
from toolkit.power.rapl import ZONES, RaplCounter


def zone(number: str, name: str, energy_uj: object, largest: object = 262_143_328_850) -> dict[str, str]:
    fields = {"name": name, "energy_uj": energy_uj, "max_energy_range_uj": largest}
    return {f"{ZONES}/intel-rapl:{number}/{field}": f"{value}\n" for field, value in fields.items()}


def set_energy(root: Path, number: str, energy_uj: int) -> None:
    (root / ZONES / f"intel-rapl:{number}" / "energy_uj").write_text(f"{energy_uj}\n")


def test_joules_since_it_was_made(tmp_path: Path) -> None:
    root = machine_root(tmp_path, files=zone("0", "package-0", 5_000_000))
    counter = RaplCounter(root)
    assert counter.is_there and counter.energy_j() == 0
    set_energy(root, "0", 8_500_000)
    assert counter.energy_j() == pytest.approx(3.5)


def test_a_counter_wraps_around(tmp_path: Path) -> None:
    root = machine_root(tmp_path, files=zone("0", "package-0", 9_000_000, largest=10_000_000))
    counter = RaplCounter(root)
    set_energy(root, "0", 500_000)
    assert counter.energy_j() == pytest.approx(1.5)
    set_energy(root, "0", 600_000)
    assert counter.energy_j() == pytest.approx(1.6)


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    root = machine_root(tmp_path, files=zone("0", "package-0", 0) | zone("1", "package-1", 0) | zone("0:0", "core", 0))
    counter = RaplCounter(root)
    for number in ("0", "1", "0:0"):
        set_energy(root, number, 1_000_000)
    assert counter.energy_j() == pytest.approx(2.0)


def test_the_platform_counts_its_packages_already(tmp_path: Path) -> None:
    root = machine_root(tmp_path, files=zone("0", "package-0", 0) | zone("1", "psys", 0))
    counter = RaplCounter(root)
    set_energy(root, "0", 1_000_000)
    set_energy(root, "1", 3_000_000)
    assert counter.energy_j() == pytest.approx(3.0)


def test_nothing_without_counters(tmp_path: Path) -> None:
    counter = RaplCounter(tmp_path)
    assert not counter.is_there and counter.energy_j() is None


def test_nothing_where_reading_is_refused(tmp_path: Path) -> None:
    root = machine_root(tmp_path, files=zone("0", "package-0", 5))
    path = root / ZONES / "intel-rapl:0" / "energy_uj"
    path.unlink()
    path.mkdir()  # refuses root as well, which forbidden files do not
    assert not RaplCounter(root).is_there


@pytest.mark.parametrize("energy", ["", "abc", "-5"])
def test_a_counter_that_is_no_number_is_none(tmp_path: Path, energy: str) -> None:
    assert not RaplCounter(machine_root(tmp_path, files=zone("0", "package-0", energy))).is_there


def test_half_of_a_machine_is_no_figure(tmp_path: Path) -> None:
    files = zone("0", "package-0", 5) | zone("1", "package-1", "?")
    assert not RaplCounter(machine_root(tmp_path, files=files)).is_there


def test_a_counter_that_vanishes_or_goes_back_ends_the_figure(tmp_path: Path) -> None:
    root = machine_root(tmp_path / "gone", files=zone("0", "package-0", 5))
    counter = RaplCounter(root)
    (root / ZONES / "intel-rapl:0" / "energy_uj").unlink()
    assert counter.energy_j() is None and counter.energy_j() is None
    root = machine_root(tmp_path / "back", files=zone("0", "package-0", 900, largest="?"))
    counter = RaplCounter(root)
    set_energy(root, "0", 5)
    assert counter.energy_j() is None
