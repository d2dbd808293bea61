from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from toolkit.helper_processes import add_helper, helper_pids, helpers_cpu_s, remove_helper
from toolkit.metrics import measure_peak_rss_bytes, measure_rss_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
_HOLD = "held = b'x' * (64 << 20); sum(range(30_000_000)); print('held', flush=True); import time; time.sleep(600)"


@pytest.fixture
def program() -> Iterator[int]:
    """The pid of a program that holds 64 MiB and has computed for some tenths of a second."""
    process = subprocess.Popen([sys.executable, "-c", _HOLD], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


def test_what_an_engines_program_takes_is_taken_by_its_process(program: int) -> None:
    rss, peak, cpu_s = measure_rss_bytes(), measure_peak_rss_bytes(), helpers_cpu_s()
    assert rss is not None and peak is not None and cpu_s == 0
    add_helper(program)
    try:
        with_program, peak_with_program = measure_rss_bytes(), measure_peak_rss_bytes()
        assert with_program is not None and with_program - rss > 60 << 20
        assert peak_with_program is not None and peak_with_program - peak > 60 << 20
        assert helpers_cpu_s() > 0.05
    finally:
        remove_helper(program)
    after = measure_rss_bytes()
    assert after is not None and after < with_program - (32 << 20) and helpers_cpu_s() == 0


def test_of_another_process_all_children_count(program: int) -> None:
    alone = measure_rss_bytes(program)
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    parent = subprocess.Popen([sys.executable, "-c", child, _HOLD], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while (measure_rss_bytes(parent.pid) or 0) < (60 << 20):
            assert time.monotonic() < deadline, "its child's 64 MiB never show"
            time.sleep(0.02)
        assert len(helper_pids(parent.pid)) == 1
    finally:
        os.killpg(parent.pid, 9)
        parent.wait()
    assert alone is not None and helper_pids(program) == []


def test_a_program_that_is_gone_takes_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    add_helper(process.pid)
    try:
        assert measure_rss_bytes() is not None and helpers_cpu_s() == 0
    finally:
        remove_helper(process.pid)
    assert measure_rss_bytes(process.pid) is None
