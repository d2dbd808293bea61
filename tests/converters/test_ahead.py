"""Calls side by side: order, limits, errors and interrupts."""

from __future__ import annotations

import threading
import time

import pytest

from converters.ahead import Ahead, side_by_side, wait_until_stopped


def never() -> None:
    raise AssertionError("nothing is to be stopped here")


def test_results_come_in_the_order_of_the_calls_whoever_ends_first() -> None:
    first_may_end = threading.Event()

    def first() -> str:
        assert first_may_end.wait(30)
        return "first"

    def second() -> str:
        first_may_end.set()
        return "second"

    assert side_by_side([first, second], n_at_once=2, stop=never) == ["first", "second"]


@pytest.mark.parametrize("n_at_once", [1, 2, 3])
def test_no_more_calls_run_than_allowed(n_at_once: int) -> None:
    running, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(n_at_once)

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(30)
        time.sleep(0.02)  # in which a call too many would begin
        with lock:
            running -= 1

    side_by_side([call] * 6, n_at_once=n_at_once, stop=never)
    assert most == n_at_once


def test_one_at_a_time_stays_in_this_thread() -> None:
    assert side_by_side([threading.get_ident], n_at_once=1, stop=never) == [threading.get_ident()]
    assert side_by_side([threading.get_ident], n_at_once=2, stop=never) != [threading.get_ident()]


def test_an_error_stops_what_runs_and_leaves_out_what_has_not_begun() -> None:
    begun: list[str] = []
    is_running, stopped = threading.Event(), threading.Event()

    def fail() -> None:
        assert is_running.wait(30)
        raise KeyError("broken")

    def run_until_stopped() -> None:
        begun.append("long")
        is_running.set()
        assert stopped.wait(30)

    def later() -> None:
        begun.append("later")

    with pytest.raises(KeyError, match="broken"):
        side_by_side([fail, run_until_stopped, run_until_stopped, later, later], n_at_once=2, stop=stopped.set)
    assert begun in (["long"], ["long", "long"]) and stopped.is_set()


def test_an_answer_worked_out_ahead_is_given_or_its_error_raised() -> None:
    assert Ahead(lambda: 6 * 7).result() == 42
    with pytest.raises(ZeroDivisionError):
        Ahead(lambda: 1 // 0).result()


def test_stopping_asks_until_the_last_one_has_ended() -> None:
    asked: list[int] = []
    enough = threading.Event()
    ahead = Ahead(lambda: enough.wait(30))

    def stop() -> None:
        asked.append(1)
        if len(asked) == 3:
            enough.set()

    wait_until_stopped([ahead], stop)
    assert not ahead.is_running and len(asked) >= 3
