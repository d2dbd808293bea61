"""Holding a process: it stops where it is, a call wakes it, and the time does not count."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.toolkit.isolated import wait_until
from toolkit.worker_hold import Hold

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the state of a process from /proc")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()  # ends a stopped one as well
    assert process.wait(60) != 0


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def told_nothing(word: str) -> None:
    raise AssertionError(word)


def test_it_stops_where_it_is_and_goes_on(child: subprocess.Popen[bytes]) -> None:
    hold = Hold(lambda: child.pid, told_nothing, by_signal=True)
    hold.set(True)
    wait_until(lambda: is_stopped(child.pid), "the stop")
    hold.set(True)
    hold.set(False)
    wait_until(lambda: not is_stopped(child.pid), "the release")


def test_a_call_wakes_it_for_as_long_as_it_takes(child: subprocess.Popen[bytes]) -> None:
    hold = Hold(lambda: child.pid, told_nothing, by_signal=True)
    with hold.awake():
        hold.set(True)
        assert not is_stopped(child.pid)
        with hold.awake():
            pass
        assert not is_stopped(child.pid)
    wait_until(lambda: is_stopped(child.pid), "the stop after the calls")
    with hold.awake():
        wait_until(lambda: not is_stopped(child.pid), "the waking")


def test_time_in_which_it_could_not_run_does_not_count(child: subprocess.Popen[bytes]) -> None:
    hold = Hold(lambda: child.pid, told_nothing, by_signal=True)
    offset = time.monotonic() - hold.now()
    hold.set(True)
    before = hold.now()
    time.sleep(0.2)
    assert hold.now() - before < 0.1
    hold.set(False)
    assert time.monotonic() - hold.now() >= offset + 0.2
    before = hold.now()
    time.sleep(0.2)
    assert hold.now() - before >= 0.2


@pytest.mark.parametrize("pid", [0, 2**22 + 1])
def test_a_process_that_is_gone_is_not_held(pid: int) -> None:
    """0 would be the group of this very process."""
    hold = Hold(lambda: pid, told_nothing, by_signal=True)
    hold.set(True)
    hold.set(False)


def test_elsewhere_it_is_told_each_change_once() -> None:
    told: list[str] = []
    hold = Hold(lambda: 0, told.append, by_signal=False)
    for is_held in (False, True, True, False, True):
        hold.set(is_held)
    with hold.awake():
        pass
    assert told == ["hold", "release", "hold"]
