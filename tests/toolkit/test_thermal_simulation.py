"""The simulated phone: its physics by closed forms, its system by its own limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from toolkit.governor import Governor
from toolkit.governor_policy import load_policy
from toolkit.thermal_simulation import SKIN_LIMITS_C, STEP_S, Phone, SimulatedPhone, simulate

COOL = Phone(ambient_c=20.0, decode_power_w=2.0)


def governor(phone: SimulatedPhone) -> Governor:
    return Governor(load_policy(), phone.read, clock=phone.clock, wall_clock=phone.clock)


def decoded(phone: Phone, seconds: float) -> SimulatedPhone:
    simulated = SimulatedPhone(phone)
    for _ in range(round(seconds / STEP_S)):
        simulated.step(is_decoding=True)
    return simulated


def test_it_settles_where_as_much_heat_leaves_as_comes() -> None:
    simulated = decoded(COOL, 20_000)
    assert simulated.body_c == pytest.approx(20 + 6 * (2 + 1), abs=0.01)
    assert simulated.chip_c == pytest.approx(simulated.body_c + 6 * 2, abs=0.01)


def test_the_body_warms_up_as_newton_says() -> None:
    """After one time constant (R C = 600 s) 1 - 1/e of the way; the chip's own heat takes a few seconds more."""
    warmed = decoded(COOL, 600).body_c - 20
    assert warmed == pytest.approx(18 * (1 - math.exp(-1)), rel=0.02)


def test_every_joule_comes_out_of_the_battery() -> None:
    simulated = decoded(COOL, 100)
    assert simulated.left_j == pytest.approx(0.8 * COOL.battery_j - 100 * 3.0)


def test_the_system_throttles_at_severe_and_lets_go_below_its_margin() -> None:
    simulated = SimulatedPhone(replace(COOL, ambient_c=45.5))
    simulated.step(is_decoding=False)
    assert simulated.status == 3
    assert simulated.step(is_decoding=True)[0] == pytest.approx(0.5 * 12 * STEP_S)
    simulated.body_c = SKIN_LIMITS_C[2] - 1.0
    simulated.step(is_decoding=False)
    assert simulated.status == 3
    simulated.body_c = SKIN_LIMITS_C[2] - 2.5
    simulated.step(is_decoding=False)
    assert simulated.status == 1 + (simulated.body_c >= SKIN_LIMITS_C[1] - 1.9)


def test_headroom_is_one_at_severe_and_zero_thirty_degrees_below() -> None:
    simulated = SimulatedPhone(COOL)
    for body_c, expected in ((45.0, 1.0), (30.0, 0.5), (10.0, 0.0), (48.0, 1.1)):
        simulated.body_c = body_c
        assert simulated.read().thermal_headroom == pytest.approx(expected)


def test_a_policy_keeps_a_warm_phone_below_severe_and_no_policy_does_not() -> None:
    without = simulate(Phone(), 20_000, limit_s=14_400)
    with_it = simulate(Phone(), 20_000, governor, limit_s=14_400)
    assert without.over_severe_s > 60 and with_it.over_severe_s == 0
    assert with_it.is_finished and with_it.seconds > without.seconds and with_it.events


def test_a_short_answer_costs_nothing_more_with_a_policy() -> None:
    phone = Phone(ambient_c=24.0)
    assert simulate(phone, 250, governor, limit_s=600) == simulate(phone, 250, limit_s=600)


def test_an_empty_battery_ends_it_without_a_policy_and_ten_percent_with_one() -> None:
    phone = replace(COOL, battery_share=0.12)
    without, with_it = (simulate(phone, 10**6, make, limit_s=1e5) for make in (None, governor))
    assert not without.is_finished and without.energy_j == pytest.approx(0.12 * phone.battery_j, rel=0.001)
    assert not with_it.is_finished and with_it.energy_j == pytest.approx(0.02 * phone.battery_j, rel=0.01)


def test_a_share_of_the_time_is_that_share() -> None:
    phone = replace(COOL, battery_share=0.15)
    policy = load_policy()
    rows = tuple(replace(row, duty_share=0.35) if row.duty_share == 1.0 else row for row in policy.rows)

    def make(simulated: SimulatedPhone) -> Governor:
        return Governor(replace(policy, rows=rows), simulated.read, clock=simulated.clock)

    assert simulate(phone, 1000, make, limit_s=10_000).seconds == pytest.approx(1000 / 12 / 0.35, rel=0.01)


def test_it_is_deterministic() -> None:
    assert simulate(Phone(), 5000, governor, limit_s=3600) == simulate(Phone(), 5000, governor, limit_s=3600)
