"""The governor: worse at once, better only when it lasts, and no flapping whatever the noise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.governor import Governor, GovernorEvent, GovernorState
from toolkit.governor_policy import GovernorPolicy
from toolkit.governor_rows import Actions, Condition, Row
from toolkit.power.reading import Reading

FULL, ECONOMY, PAUSE, STOP = GovernorState
SETTLE_S, MARGIN_C = 10.0, 3.0
LIMITS_C = {ECONOMY: 40.0, PAUSE: 50.0, STOP: 60.0}
POLICY = GovernorPolicy(
    rows=tuple(Row(level, (Condition("temperature_c", "at least", limit, MARGIN_C),)) for level, limit in LIMITS_C.items()),
    settle_s=SETTLE_S,
    economy=Actions(duty_share=0.5, max_new_tokens=10),
)


class Device:
    """A clock and a thermometer that a test moves."""

    def __init__(self) -> None:
        self.now, self.n_reads = 1000.0, 0
        self.reading = Reading(temperature_c=20.0)

    def __call__(self) -> Reading:
        self.n_reads += 1
        return self.reading

    def clock(self) -> float:
        return self.now

    def governor(self, policy: GovernorPolicy = POLICY) -> Governor:
        return Governor(policy, self, clock=self.clock, wall_clock=lambda: 1e9 + self.now)

    def run(self, governor: Governor, temperatures: Sequence[float | None], *, step_s: float = 1.0) -> list[GovernorState]:
        """The state after each temperature, one a step."""
        states = []
        for temperature in temperatures:
            self.reading = Reading(temperature_c=temperature)
            states.append(governor.poll())
            self.now += step_s
        return states


@pytest.fixture
def device() -> Device:
    return Device()


def test_worse_counts_at_once_and_by_as_many_levels_as_it_is(device: Device) -> None:
    assert device.run(device.governor(), [20, 40, 65]) == [FULL, ECONOMY, STOP]


def test_better_waits_and_needs_the_margin(device: Device) -> None:
    governor = device.governor()
    assert device.run(governor, [45] + [38] * 30) == [ECONOMY] * 31  # inside the margin it is not better at all
    assert device.run(governor, [37] * 12) == [ECONOMY] * 10 + [FULL] * 2


def test_a_worse_moment_in_the_waiting_begins_it_anew(device: Device) -> None:
    assert device.run(device.governor(), [45] + [30] * 9 + [45] + [30] * 11)[-2:] == [ECONOMY, FULL]


def test_better_goes_only_as_far_as_all_of_the_waiting_was(device: Device) -> None:
    states = device.run(device.governor(), [55] + [30] * 5 + [42] + [30] * 5 + [30] * 12)
    assert states[0] is PAUSE and states[11] is ECONOMY and states[-1] is FULL


def test_readings_are_a_second_apart_whoever_asks(device: Device) -> None:
    governor = device.governor()
    device.run(governor, [20] * 50, step_s=0.1)
    assert device.n_reads == 5


def test_a_long_gap_counts_as_having_waited(device: Device) -> None:
    governor = device.governor()
    assert device.run(governor, [55]) == [PAUSE]
    device.now += 600
    assert device.run(governor, [30]) == [FULL]


def test_a_sensor_that_vanishes_releases_only_after_the_settle_time_and_keeps_its_margin(device: Device) -> None:
    governor = device.governor()
    assert device.run(governor, [45] + [None] * 5 + [38]) == [ECONOMY] * 7  # 38 is inside the margin: still held
    assert device.run(governor, [None] * 12)[-1] is FULL


def test_events_say_when_what_and_why(device: Device) -> None:
    governor = device.governor()
    device.run(governor, [20, 45] + [30] * 12)
    worse, better = governor.events
    assert worse == GovernorEvent(1e9 + 1001, 1001.0, FULL, ECONOMY, "temperature 45 °C, at least 40 °C")
    assert better == GovernorEvent(1e9 + 1012, 1012.0, ECONOMY, FULL, "over: temperature 45 °C, at least 40 °C")
    assert worse.as_dict() == {"unix_s": 1e9 + 1001, "was": "full", "state": "economy", "why": worse.why}
    assert governor.events_since(1) == (better,) and governor.events_since(2) == ()


def test_only_the_last_thousand_events_are_kept(device: Device) -> None:
    governor = device.governor()
    for _ in range(600):
        device.run(governor, [45, 30])
        device.now += 100
        device.run(governor, [30])
    assert len(governor.events) == 1000 and governor.n_events == 1200
    assert governor.events_since(1199) == governor.events[-1:]


def test_forced_stops_are_not_asked_again(device: Device) -> None:
    governor = device.governor()
    assert governor.excuse_stops() == ""
    assert device.run(governor, [65]) == [STOP]
    assert governor.excuse_stops() == "temperature 65 °C, at least 60 °C"
    assert governor.state is PAUSE and governor.events[-1].why == "forced: temperature 65 °C, at least 60 °C"
    assert device.run(governor, [70]) == [PAUSE]


def test_actions_are_those_of_the_state(device: Device) -> None:
    governor = device.governor()
    assert governor.actions == Actions()
    device.run(governor, [45])
    assert governor.actions == POLICY.economy


def test_a_row_may_have_its_own_share_and_the_least_counts_by_the_same_rules(device: Device) -> None:
    gentle = Row(ECONOMY, (Condition("temperature_c", "at least", 30.0),), duty_share=0.9)
    governor = device.governor(GovernorPolicy((gentle, *POLICY.rows), SETTLE_S, POLICY.economy))
    shares = []
    for temperature in [35.0, 45.0] + [35.0] * 11:
        device.run(governor, [temperature])
        shares.append(governor.actions.duty_share)
    assert shares == [0.9] + [0.5] * 11 + [0.9]
    assert len(governor.events) == 1  # it is economy all the time


def test_a_reader_that_raises_leaves_the_state(device: Device) -> None:
    def broken() -> Reading:
        raise OSError("gone")

    assert Governor(POLICY, broken).poll() is FULL


def test_one_thread_reads_while_others_are_answered(device: Device) -> None:
    entered, release = threading.Event(), threading.Event()

    def slow() -> Reading:
        entered.set()
        assert release.wait(60)
        return Reading(temperature_c=45.0)

    governor = Governor(POLICY, slow)
    thread = threading.Thread(target=governor.poll)
    thread.start()
    assert entered.wait(60)
    assert governor.poll() is FULL  # and does not wait for the slow one
    release.set()
    thread.join(60)
    assert governor.state is ECONOMY


def changes(states: Sequence[GovernorState]) -> list[int]:
    return [index for index in range(1, len(states)) if states[index] is not states[index - 1]]


def check_noise_flaps_once(run: Callable[[list[float]], list[GovernorState]], noise: list[float], limit: float) -> None:
    """Noise that stays inside the margin behind a limit changes the state at most once."""
    assert len(changes(run([limit + value for value in noise]))) <= 1


@given(st.lists(st.floats(-MARGIN_C + 0.01, 9.9), min_size=1, max_size=200), st.sampled_from(sorted(LIMITS_C.values())))
@settings(max_examples=150, deadline=None)
def test_noise_around_a_limit_changes_the_state_once(noise: list[float], limit: float) -> None:
    device = Device()
    governor = device.governor()
    device.run(governor, [limit - 5])
    check_noise_flaps_once(lambda trace: device.run(governor, trace), noise, limit)


@given(st.lists(st.one_of(st.none(), st.floats(20, 70)), min_size=1, max_size=300), st.sampled_from([1.0, 0.5, 3.0]))
@settings(max_examples=150, deadline=None)
def test_whatever_comes_worse_is_immediate_and_better_waits(trace: list[float | None], step_s: float) -> None:
    device = Device()
    governor = device.governor()
    device.run(governor, trace, step_s=step_s)
    last_change = 0.0
    for event in governor.events:
        if event.state.severity < event.was.severity:
            assert event.at_s - last_change >= SETTLE_S  # so two improvements are never nearer than that
        last_change = event.at_s
    if step_s >= 1.0 and (hottest := trace[-1]) is not None:
        demanded = max((level for level, limit in LIMITS_C.items() if hottest >= limit), key=lambda one: one.severity, default=FULL)
        assert governor.state.severity >= demanded.severity


def test_without_margin_and_settling_it_would_flap() -> None:
    """The must-fail twin of the two above: the same noise, and a table that has neither."""
    device = Device()
    rows = (Row(ECONOMY, (Condition("temperature_c", "at least", 40.0),)),)
    governor = device.governor(GovernorPolicy(rows, settle_s=0.0, economy=Actions()))
    with pytest.raises(AssertionError):
        check_noise_flaps_once(lambda trace: device.run(governor, trace), [-1.0, 1.0] * 10, 40.0)
