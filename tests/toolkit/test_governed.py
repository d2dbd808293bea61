"""An engine under a governor: refused, capped, stopped and opened again, on a backend without weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.toolkit.fake_backend import END, FakeBackend
from tests.toolkit.hot_phone import LOW, QUICK, WELL, Phone
from tests.toolkit.isolated import say, wait_until
from toolkit.budget import Budget
from toolkit.bundle import Bundle
from toolkit.device.profile import probe_device
from toolkit.engine import Engine
from toolkit.errors import BudgetError
from toolkit.governed import choose_governor
from toolkit.governor import Governor, GovernorState
from toolkit.power.reading import Reading
from toolkit.session import FinishReason


@pytest.fixture
def open_fake(fake_bundle: Bundle, backend: FakeBackend) -> Iterator[Callable[..., Engine]]:
    opened: list[Engine] = []

    def opener(**options: Any) -> Engine:
        opened.append(Engine.open(fake_bundle, expected_tokens=64, **options))
        return opened[-1]

    yield opener
    for engine in opened:
        engine.close()


@pytest.mark.parametrize(
    ("asked", "budget", "reading", "is_there"),
    [
        (None, Budget(), Reading(), False),
        (None, Budget(), Reading(temperature_c=50.0, memory_pressure=0.1), False),  # a machine at the mains
        (None, Budget(), WELL, True),
        (None, Budget(), Reading(thermal_status=0), True),
        (None, Budget(battery_floor=0.2), Reading(), True),
        (None, Budget(max_temperature_c=60), Reading(), True),
        (True, Budget(), Reading(), True),
        (False, Budget(), WELL, False),
        (False, Budget(battery_floor=0.2), WELL, True),
    ],
)
def test_which_engine_has_a_governor(asked: bool | None, budget: Budget, reading: Reading, is_there: bool) -> None:
    assert (choose_governor(asked, budget, reader=lambda: reading) is not None) is is_there


def test_without_the_table_only_the_budgets_limits_count() -> None:
    governor = choose_governor(
        False, Budget(battery_floor=0.05), reader=lambda: Reading(battery_share=0.07, is_plugged=False, thermal_status=6)
    )
    assert governor is not None and governor.poll() is GovernorState.FULL


def test_a_governor_of_ones_own_keeps_to_the_budget_too() -> None:
    own = Governor(QUICK, lambda: LOW)
    assert choose_governor(own, Budget()) is own
    governor = choose_governor(own, Budget(battery_floor=0.15))
    assert governor is not None and governor.poll() is GovernorState.STOP and own.poll() is GovernorState.FULL


def test_a_battery_below_the_floor_is_refused_before_anything_is_loaded(open_fake: Callable[..., Engine], backend: FakeBackend) -> None:
    with pytest.raises(BudgetError) as caught:
        open_fake(budget=Budget(battery_floor=0.15), governor=Governor(reader=lambda: LOW))
    assert caught.value.exit_code == 3 and backend.opened == []
    lines = str(caught.value).splitlines()
    assert len(lines) == 3 and "battery 12 %, below 15 %, unplugged" in lines[1] and "--force" in lines[2]


def test_a_limit_that_nothing_can_keep_is_named(open_fake: Callable[..., Engine], caplog: pytest.LogCaptureFixture) -> None:
    open_fake(budget=Budget(max_temperature_c=45), governor=Governor(reader=lambda: WELL))
    assert "the limit of 45 °C is not kept" in caplog.text
    caplog.clear()
    open_fake(budget=Budget(max_temperature_c=45), governor=Governor(reader=lambda: Reading(temperature_c=30.0)))
    assert caplog.text == ""


def test_forced_it_answers_all_the_same_and_says_so(open_fake: Callable[..., Engine], backend: FakeBackend) -> None:
    engine = open_fake(budget=Budget(battery_floor=0.15), governor=Governor(reader=lambda: LOW), force=True)
    backend.engine.answers = ["yes" + END]
    session = engine.session()
    assert say(session) == "yes" and session.finish_reason is FinishReason.STOP
    assert session.metrics is not None
    (event,) = session.metrics.governor_events
    assert event["state"] == "economy" and event["why"] == "forced: battery 12 %, below 15 %, unplugged"


def test_a_plugged_device_is_never_refused_for_its_battery(open_fake: Callable[..., Engine]) -> None:
    reading = Reading(battery_share=0.02, is_plugged=True)
    assert open_fake(budget=Budget(battery_floor=0.15), governor=Governor(reader=lambda: reading)).governed.governor is not None


def test_economy_shortens_answers_and_halves_the_threads_of_an_engine_opened_then(
    open_fake: Callable[..., Engine], backend: FakeBackend
) -> None:
    phone = Phone(Reading(thermal_status=1))
    engine = open_fake(governor=phone.governor)
    assert engine.threads == max(1, probe_device().cores.best_threads // 2)
    backend.engine.answers = ["abc"]
    session = engine.session()
    assert say(session, max_tokens=20) == "abc" and session.finish_reason is FinishReason.BUDGET
    assert session.metrics is not None and [event["state"] for event in session.metrics.governor_events] == ["economy"]
    backend.engine.answers = ["ab"]
    assert say(session, max_tokens=2) == "ab" and session.finish_reason is FinishReason.LENGTH  # asked for, not cut


def test_threads_that_were_asked_for_stand(open_fake: Callable[..., Engine]) -> None:
    assert open_fake(governor=Phone(Reading(thermal_status=1)).governor, threads=2).threads == 2


def test_a_stopped_engine_refuses_and_opens_again_when_it_is_over(open_fake: Callable[..., Engine], backend: FakeBackend) -> None:
    phone = Phone()
    engine = open_fake(governor=phone.governor)
    session = engine.session()
    backend.engine.answers = ["one" + END, "two" + END]
    assert say(session) == "one"
    phone.heat(4)
    wait_until(lambda: phone.governor.poll() is GovernorState.STOP, "the stop")
    with pytest.raises(BudgetError, match="thermal status 4, at least 4"):
        say(session)
    wait_until(lambda: engine._loader.native is None, "the unloading")
    phone.heat(0)
    wait_until(lambda: phone.governor.poll() is GovernorState.FULL, "the end of it")
    n_opened = len(backend.opened)
    assert say(session) == "two" and len(backend.opened) > n_opened
    assert [message.content for message in session.messages] == ["check the pump", "one", "check the pump", "two"]


def test_without_a_governor_metrics_are_empty_of_it(open_fake: Callable[..., Engine], backend: FakeBackend) -> None:
    engine = open_fake(governor=False)
    backend.engine.answers = ["one" + END]
    session = engine.session()
    say(session)
    assert session.metrics is not None
    told = session.metrics.as_dict()
    assert told["governor_events"] == () and told["held_s"] == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "engine-pacer"]
