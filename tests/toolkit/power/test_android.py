"""Android's figures, by stand-ins for the Java objects pyjnius hands out."""

from __future__ import annotations

import math
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

from tests.toolkit.clock import Clock
from tests.toolkit.isolated import wait_until
from toolkit.power.android import AndroidReader
from toolkit.power.reading import Reading

UNSUPPORTED = -(2**31)  # Integer.MIN_VALUE, what a property answers that a vendor left out


class JavaException(Exception):
    """pyjnius's own does not derive from anything of ours either."""


class Phone:
    """A context with its services; `without` names calls this version of Android does not have."""

    def __init__(self, **values: Any) -> None:
        self.values = {
            "isPowerSaveMode": False,
            "getCurrentThermalStatus": 0,
            "getThermalHeadroom": 0.3,
            "capacity": 80,
            "current": -500_000,
            "plugged": 0,
            "temperature": 312,
            "voltage": 4000,
        } | values
        self.n_headrooms = 0

    def tell(self, name: str) -> Any:
        if self.values[name] is JavaException:
            raise JavaException(name)
        return self.values[name]

    def getSystemService(self, name: str) -> Phone:
        return self

    def isPowerSaveMode(self) -> Any:
        return self.tell("isPowerSaveMode")

    def getCurrentThermalStatus(self) -> Any:
        return self.tell("getCurrentThermalStatus")

    def getThermalHeadroom(self, forecast_s: int) -> Any:
        self.n_headrooms += 1
        return self.tell("getThermalHeadroom")

    def getIntProperty(self, number: int) -> Any:
        return self.tell({4: "capacity", 2: "current"}[number])

    def registerReceiver(self, receiver: None, intents: str) -> Phone:
        assert intents == "android.intent.action.BATTERY_CHANGED"
        return self

    def getIntExtra(self, name: str, default: int) -> Any:
        return self.tell(name)


@pytest.fixture(autouse=True)
def detached(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """pyjnius; returns the threads that were detached from Java."""
    module, threads = types.ModuleType("jnius"), list[threading.Thread]()
    module.autoclass = lambda name: lambda action: action  # type: ignore[attr-defined]
    module.detach = lambda: threads.append(threading.current_thread())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jnius", module)
    return threads


def read(**values: Any) -> Reading:
    phone = Phone(**values)
    return AndroidReader(lambda: phone)()


def test_a_phone_in_a_pocket() -> None:
    assert read() == Reading(
        battery_share=0.8,
        is_plugged=False,
        is_low_power_mode=False,
        temperature_c=31.2,
        thermal_status=0,
        thermal_headroom=0.3,
        battery_power_w=pytest.approx(2.0),
    )


@pytest.mark.parametrize("current", [500_000, -500_000, 500, -500])
def test_vendors_differ_in_the_sign_and_the_unit_of_the_current(current: int) -> None:
    assert read(current=current).battery_power_w == pytest.approx(2.0)


@pytest.mark.parametrize("current", [UNSUPPORTED, 0, JavaException])
def test_a_current_that_is_not_told_is_no_power(current: Any) -> None:
    assert read(current=current).battery_power_w is None


@pytest.mark.parametrize("plugged", [1, 2, 4])
def test_power_is_that_of_the_charger_while_it_is_plugged(plugged: int) -> None:
    reading = read(plugged=plugged)
    assert reading.is_plugged is True and reading.battery_power_w is None


def test_what_one_service_refuses_costs_nothing_else() -> None:
    reading = read(getCurrentThermalStatus=JavaException, capacity=UNSUPPORTED, plugged=-1)
    assert reading.thermal_status is None and reading.battery_share is None and reading.is_plugged is None
    assert reading.thermal_headroom == 0.3 and reading.is_low_power_mode is False


@pytest.mark.parametrize("status", [-1, 7, True])
def test_a_status_off_the_scale_is_unknown(status: int) -> None:
    assert read(getCurrentThermalStatus=status).thermal_status is None


def test_headroom_is_asked_at_most_once_a_second(clock: Clock) -> None:
    phone = Phone()
    reader = AndroidReader(lambda: phone, clock=clock)
    for step in range(21):
        clock.now = 100.0 + 0.1 * step
        assert reader().thermal_headroom == 0.3
    assert phone.n_headrooms == 2


def test_headroom_that_is_not_a_number_leaves_the_last_for_ten_seconds(clock: Clock) -> None:
    phone = Phone()
    reader = AndroidReader(lambda: phone, clock=clock)
    assert reader().thermal_headroom == 0.3
    phone.values["getThermalHeadroom"] = math.nan
    clock.now += 9
    assert reader().thermal_headroom == 0.3
    clock.now += 2
    assert reader().thermal_headroom is None


def test_java_is_asked_on_threads_that_are_detached_again(detached: list[threading.Thread]) -> None:
    asked: list[threading.Thread] = []

    def context() -> Phone:
        asked.append(threading.current_thread())
        return Phone()

    reader = AndroidReader(context)
    reader()
    reader()
    assert asked == detached and len(set(asked)) == 2 and threading.current_thread() not in asked
    assert AndroidReader(refuse)().tells_nothing and len(detached) == 3


def test_a_service_that_hangs_hangs_nobody_and_is_asked_once() -> None:
    n_asked, release = 0, threading.Event()

    def context() -> None:
        nonlocal n_asked
        n_asked += 1
        release.wait(60)

    reader = AndroidReader(context, longest_look_s=0.05)
    assert reader().tells_nothing and reader().tells_nothing and n_asked == 1
    release.set()
    wait_until(lambda: not any(thread.name == "android-reading" for thread in threading.enumerate()), "the end of the look")
    reader()
    assert n_asked == 2


def refuse() -> Any:
    raise JavaException("no app")


@pytest.mark.parametrize("context", [lambda: None, refuse])
def test_outside_of_an_app_nothing_is_told(context: Callable[[], Any]) -> None:
    assert AndroidReader(context)().tells_nothing
