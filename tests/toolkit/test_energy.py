"""Energy: what meters counted, and nothing where they did not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolkit.clock import Clock
from tests.toolkit.machine_root import machine_root
from tests.toolkit.power.test_rapl import set_energy, zone
from toolkit.energy import Energy, EnergyMeter, MeterKind, energy_between
from toolkit.power.rapl import RaplCounter
from toolkit.power.reading import Reading


def looks(meter: EnergyMeter, clock: Clock, *watts: float | None, every_s: float = 1.0) -> None:
    for power_w in watts:
        meter.look(Reading(battery_power_w=power_w))
        clock.now += every_s


def test_what_the_battery_gives_holds_until_the_next_look(clock: Clock) -> None:
    meter = EnergyMeter(clock=clock)
    start = meter.mark()
    looks(meter, clock, 4.0, 6.0)
    first = meter.mark()
    looks(meter, clock, 2.0)
    clock.now += 0.5
    assert energy_between(start, first, meter.mark()) == Energy(MeterKind.BATTERY, pytest.approx(13.0), pytest.approx(10.0))


def test_one_look_is_no_measurement(clock: Clock) -> None:
    meter = EnergyMeter(clock=clock)
    looks(meter, clock, 4.0)
    start = meter.mark()
    looks(meter, clock, 4.0)
    assert energy_between(start, None, meter.mark()) is None
    looks(meter, clock, 4.0)
    assert energy_between(start, None, meter.mark()) == Energy(MeterKind.BATTERY, pytest.approx(8.0), None)


def test_a_charger_that_comes_in_between_ends_the_figure(clock: Clock) -> None:
    meter = EnergyMeter(clock=clock)
    start = meter.mark()
    looks(meter, clock, 4.0, None, 4.0, 4.0)
    assert energy_between(start, None, meter.mark()) is None


def test_over_a_long_gap_nobody_knows(clock: Clock) -> None:
    meter = EnergyMeter(clock=clock)
    start = meter.mark()
    looks(meter, clock, 4.0, 4.0, every_s=10)
    looks(meter, clock, 4.0, 4.0)
    assert energy_between(start, None, meter.mark()) is None


def test_what_was_used_before_the_answer_is_not_its_own(clock: Clock) -> None:
    meter = EnergyMeter(clock=clock)
    looks(meter, clock, 50.0, 50.0)
    start = meter.mark()
    looks(meter, clock, 4.0, 4.0)
    assert energy_between(start, None, meter.mark()) == Energy(MeterKind.BATTERY, pytest.approx(8.0), None)


def test_counters_of_the_processor_where_no_battery_tells(tmp_path: Path, clock: Clock) -> None:
    root = machine_root(tmp_path, files=zone("0", "package-0", 1_000_000))
    meter = EnergyMeter(RaplCounter(root), clock=clock)
    start = meter.mark()
    set_energy(root, "0", 3_000_000)
    first = meter.mark()
    set_energy(root, "0", 7_500_000)
    assert energy_between(start, first, meter.mark()) == Energy(MeterKind.RAPL, pytest.approx(6.5), pytest.approx(2.0))


def test_the_battery_counts_the_whole_device_and_comes_first(tmp_path: Path, clock: Clock) -> None:
    root = machine_root(tmp_path, files=zone("0", "package-0", 1_000_000))
    meter = EnergyMeter(RaplCounter(root), clock=clock)
    start = meter.mark()
    looks(meter, clock, 4.0, 4.0)
    energy = energy_between(start, None, meter.mark())
    assert energy is not None and energy.meter is MeterKind.BATTERY


def test_nothing_without_meters(tmp_path: Path, clock: Clock) -> None:
    for counter in (None, RaplCounter(tmp_path)):
        meter = EnergyMeter(counter, clock=clock)
        start = meter.mark()
        clock.now += 5
        assert energy_between(start, meter.mark(), meter.mark()) is None


def test_a_counter_that_vanishes_takes_its_figure_with_it(tmp_path: Path, clock: Clock) -> None:
    root = machine_root(tmp_path, files=zone("0", "package-0", 1_000_000))
    meter = EnergyMeter(RaplCounter(root), clock=clock)
    start = meter.mark()
    (root / "sys/class/powercap/intel-rapl:0/energy_uj").unlink()
    assert energy_between(start, None, meter.mark()) is None
