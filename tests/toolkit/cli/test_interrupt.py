"""Ctrl-C while native code holds the working thread, as loading a model does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from toolkit.cli.interrupt import Interruptible

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
