"""Ctrl-C while native code holds the working thread, as loading a model does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from toolkit.cli.interrupt import Interruptible
from toolkit.load_mark import LoadMark

_STUCK = """
import sys, time
from toolkit.cli.interrupt import Interruptible, leave
def work():
    print("working", flush=True)
    time.sleep(600)
try:
    Interruptible().run(work)
except KeyboardInterrupt:
    print("partial result")
    leave(130)
"""


def test_work_that_does_not_listen_does_not_hold_the_process() -> None:
    process = subprocess.Popen([sys.executable, "-c", _STUCK], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert process.stdout.read() == "partial result\n"


def test_the_works_result_and_its_errors_come_back() -> None:
    assert Interruptible().run(lambda: 7) == 7

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Interruptible().run(fail)


def test_ctrl_c_cancels_the_work_and_lets_it_report() -> None:
    cancelled, order = threading.Event(), []
    interruptible = Interruptible()

    def work() -> int:
        interruptible.on_interrupt(cancelled.set)
        os.kill(os.getpid(), signal.SIGINT)
        cancelled.wait(30)
        order.append("reported")
        interruptible.report_done()
        return 0

    with pytest.raises(KeyboardInterrupt):
        interruptible.run(work)
    assert cancelled.is_set() and order == ["reported"]


def test_a_result_is_printed_once_by_the_work_or_by_who_gave_it_up() -> None:
    first, second = Interruptible(), Interruptible()
    assert first.give_up() and not first.may_print()
    assert second.may_print()
    second.report_done()
    assert not second.give_up()


_ENDED_WHILE_LOADING = """
import time
from toolkit.cli.interrupt import Interruptible
from toolkit.load_mark import LoadMark
def work():
    mark = LoadMark("bundle", 512)
    mark.begin(100)
    print("loading", flush=True)
    time.sleep(600)
Interruptible().run(work)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_load_that_is_ended_from_outside_is_no_failure_of_the_plan(name: str, own_folders: Path) -> None:
    pytest.importorskip("fcntl", reason="notes need locks that end with their process")
    number = getattr(signal, name)
    process = subprocess.Popen([sys.executable, "-c", _ENDED_WHILE_LOADING], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "loading\n"
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number, "it dies of the signal, as its caller expects"
    mark = LoadMark("bundle", 512)
    assert mark._path.is_file() and mark.past_failure() is None
