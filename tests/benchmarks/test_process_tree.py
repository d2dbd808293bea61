"""The sampler against processes whose memory and family are known."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.process_tree import Memory, Tree, TreeRun, read_memory, read_own_memory, run_tree
from toolkit.errors import ToolkitError

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")

MIB = 2**20
HOLD = """
import sys, time
held = bytearray({mib} * 2**20)
for page in range(0, len(held), 4096): held[page] = 1
time.sleep({seconds})
"""
PARENT = """
import subprocess, sys, time
children = [subprocess.Popen([sys.executable, "-c", code]) for code in sys.argv[1:]]
print("stdout line")
print("first", file=sys.stderr)
for child in children: child.wait()
"""
# Starts a child that leaves the session and then outlives its parent.
LATE = "import time\ntime.sleep(0.8)\n"
ORPHAN = """
import subprocess, sys, time
middle = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True); time.sleep(0.4)"
subprocess.Popen([sys.executable, "-c", middle, sys.argv[1]]).wait()
time.sleep(1.6)
"""


def hold(mib: int, seconds: float = 0.6) -> str:
    """Code of a process that touches so many MiB and keeps them a while."""
    return HOLD.format(mib=mib, seconds=seconds)


def run_code(code: str, *arguments: str) -> TreeRun:
    return run_tree([sys.executable, "-c", code, *arguments], interval_s=0.02)


def test_a_process_that_holds_memory_is_seen_to_hold_it() -> None:
    small, large = run_code(hold(1)), run_code(hold(129))
    assert 120 * MIB < large.peak_rss_bytes - small.peak_rss_bytes < 136 * MIB
    assert 120 * MIB < large.peak_anonymous_bytes - small.peak_anonymous_bytes < 136 * MIB
    assert 120 * MIB < large.largest_process_rss_bytes - small.largest_process_rss_bytes < 136 * MIB
    assert large.n_samples > 5 and large.exit_code == 0


def test_children_add_up_and_the_largest_stands_apart() -> None:
    cost = run_code(PARENT, hold(64), hold(96))
    assert cost.peak_rss_bytes > 160 * MIB  # the mutant: only the command itself, or only one child, stays below
    assert 96 * MIB < cost.largest_process_rss_bytes < 150 * MIB
    assert cost.peak_rss_bytes > cost.largest_process_rss_bytes + 64 * MIB
    assert 160 * MIB < cost.peak_pss_bytes <= cost.peak_rss_bytes


# Two forked children that share the pages of their parent, which it took before.
SHARED = """
import os, time
held = bytearray(96 * 2**20)
for page in range(0, len(held), 4096): held[page] = 1
children = []
for _ in range(2):
    if (pid := os.fork()) == 0:
        sum(held[::4096])
        time.sleep(0.6)
        os._exit(0)
    children.append(pid)
for pid in children: os.waitpid(pid, 0)
"""


def test_shared_pages_count_once_in_pss_and_each_time_in_rss() -> None:
    cost = run_code(SHARED)
    assert cost.peak_rss_bytes > 250 * MIB
    assert 96 * MIB < cost.peak_pss_bytes < 150 * MIB


def test_a_grandchild_that_left_the_session_still_counts() -> None:
    cost = run_code(ORPHAN, LATE + hold(96, 0.6))  # it takes its memory when its parent is gone
    assert cost.peak_rss_bytes > 96 * MIB


def test_a_process_of_someone_else_does_not_count() -> None:
    with subprocess.Popen([sys.executable, "-c", hold(200, 30)]) as other:
        try:
            assert run_code(hold(1)).peak_rss_bytes < 150 * MIB
            assert Tree(other.pid).members() == [other.pid]
            assert Tree(2**30).members() == []
        finally:
            other.kill()


def test_what_is_printed_is_kept_with_its_time() -> None:
    cost = run_code(PARENT)
    assert cost.stdout == "stdout line\n"
    ((when, line),) = cost.stderr
    assert line == "first" and 0 < when <= cost.wall_s


def test_a_failure_is_named_with_what_it_printed_last() -> None:
    cost = run_code("import sys; print('a\\nb\\nc\\nd', file=sys.stderr); sys.exit(4)")
    with pytest.raises(ToolkitError, match="the job failed with exit code 4") as caught:
        cost.check("the job")
    assert caught.value.why == "b | c | d"
    run_code("pass").check("the job")


def test_a_program_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ToolkitError, match="cannot be run"):
        run_tree(["/nowhere/program"])


def test_nothing_of_the_session_is_left_running(tmp_path: Path) -> None:
    leave = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    run_code(leave + "open(sys.argv[1], 'w').write(str(child.pid))", str(tmp_path / "pid"))
    deadline = time.monotonic() + 5
    while read_memory(int((tmp_path / "pid").read_text())) is not None:
        assert time.monotonic() < deadline, "the child still runs"
        time.sleep(0.02)


def test_the_highest_sum_is_kept_with_its_moment() -> None:
    cost = TreeRun()
    cost.take([Memory(100, 60, 100), Memory(50, 50, 70)], 1.0)
    cost.take([Memory(120, 10, 130)], 2.0)
    assert (cost.peak_rss_bytes, cost.peak_anonymous_bytes, cost.peak_at_s) == (150, 110, 1.0)
    assert cost.largest_process_rss_bytes == 130
    assert cost.n_samples == 2


def test_memory_of_this_process_is_split_into_its_own_and_mapped() -> None:
    memory = read_own_memory()
    assert memory.anonymous_bytes > 0 and memory.mapped_bytes > 0
    assert memory.anonymous_bytes + memory.mapped_bytes == memory.rss_bytes


def test_a_process_that_is_gone_has_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        child.wait()
    assert read_memory(child.pid) is None
