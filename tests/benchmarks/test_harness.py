"""Records and their printing: every value is found where it belongs, and a missed target is said."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.harness import Figure, Report, Target, finish, paired_ratios, parser, run, table
from benchmarks.machine import ROOT, busy_cpus
from benchmarks.process_tree import read_memory
from toolkit.errors import FormatError


def report(*, limit: float = 2.0) -> Report:
    made = Report("startup", {"rounds": 3}, machine={"cpu": "test", "memory_bytes": 2**30}, versions={"ondevice-toolkit": "0"})
    made.add("toolkit --help", "wall_s", [0.3, 0.1, 0.2], Target("at most", limit))
    made.add("toolkit --help", "peak_rss_bytes", [2**20])
    made.skipped["llama.cpp"] = "not installed"
    return made


@pytest.mark.parametrize(
    ("target", "value", "is_met"),
    [
        (Target("at most", 1.2), 1.2, True),
        (Target("at most", 1.2), 1.2001, False),
        (Target("at least", 1.7), 1.7, True),
        (Target("at least", 1.7), 1.6999, False),
    ],
)
def test_a_target_is_met_on_its_own_side_only(target: Target, value: float, is_met: bool) -> None:
    assert target.is_met(value) is is_met


def test_the_median_decides() -> None:
    assert Figure("a", "ratio", (0.5, 1.0, 9.0), Target("at most", 1.0)).is_met
    assert not Figure("a", "ratio", (0.5, 1.1, 1.2), Target("at most", 1.0)).is_met


def test_a_report_knows_what_it_missed() -> None:
    assert report(limit=0.2).missed == []
    assert [figure.name for figure in report(limit=0.19).missed] == ["wall_s"]


def test_a_figure_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match="no measurement"):
        report().add("a", "wall_s", [])


def test_runs_are_appended_one_line_each(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    path = report().append_to(folder)
    assert report().append_to(folder) == path == folder / "startup.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len(lines) == 2
    first, second = lines[0]["figures"]
    assert (first["n"], first["min"], first["median"], first["max"], first["values"]) == (3, 0.1, 0.2, 0.3, [0.3, 0.1, 0.2])
    assert first["target"] == {"bound": "at most", "limit": 2.0, "is_met": True}
    assert "target" not in second
    assert lines[0]["machine"]["cpu"] == "test" and lines[0]["skipped"]["llama.cpp"] == "not installed"


def test_a_value_that_json_cannot_say_is_refused(tmp_path: Path) -> None:
    made = report()
    made.add("a", "ratio", [float("nan")])
    with pytest.raises(ValueError, match="not JSON compliant"):
        made.append_to(tmp_path)


def test_ratios_are_taken_round_by_round() -> None:
    ours, theirs = [2.0, 40.0], [1.0, 10.0]
    assert paired_ratios(ours, theirs) == [2.0, 4.0]
    assert paired_ratios(ours, theirs[::-1]) != [2.0, 4.0]  # the mutant: sides of different rounds


def test_sides_of_different_length_have_no_ratio() -> None:
    with pytest.raises(ValueError):
        paired_ratios([1.0, 2.0], [1.0])


def test_the_table_says_everything_a_reader_needs() -> None:
    text = table(report(limit=0.15))
    row = next(line for line in text.splitlines() if "wall_s" in line)
    assert " ".join(row.split()) == "toolkit --help wall_s 3 100.0 ms 200.0 ms 300.0 ms at most 150.0 ms: MISSED"
    assert "skipped llama.cpp: not installed" in text
    assert "cpu test, memory_bytes 1 GiB" in text
    assert "met" in table(report(limit=0.2)) and "MISSED" not in table(report(limit=0.2))


def test_a_machine_that_was_busy_is_said_to_have_been() -> None:
    made = report()
    made.machine["busy_cpus"] = 1.5
    assert "others kept 1.5 CPUs busy" in table(made)
    made.machine["busy_cpus"] = 0.1
    assert "busy when" not in table(made)


@pytest.mark.parametrize(("share", "busy"), [(None, None), (0.0, 0.0), (0.13, 0.52), (1.0, 4.0)])
def test_busy_cpus_are_the_share_of_all_of_them(share: float | None, busy: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.machine.measure_busy_share", lambda: share)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert busy_cpus() == busy


def test_finishing_prints_keeps_and_fails_only_when_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = parser("what it does")
    assert finish(report(limit=0.1), options.parse_args(["--results", str(tmp_path), "--json"])) == 0
    assert json.loads(capsys.readouterr().out)["benchmark"] == "startup"
    assert (tmp_path / "startup.jsonl").read_text("utf-8").count("\n") == 1
    kept_out = ["--results", str(tmp_path), "--no-record", "--check"]
    assert finish(report(limit=0.1), options.parse_args(kept_out)) == 1
    assert finish(report(limit=0.2), options.parse_args(kept_out)) == 0
    assert (tmp_path / "startup.jsonl").read_text("utf-8").count("\n") == 1


def test_an_error_is_three_lines_and_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: object) -> Report:
        raise FormatError("it is broken", why="1 byte differs", fix="copy it again")

    assert run(fail, parser("x").parse_args(["--results", str(tmp_path)])) == FormatError.exit_code
    assert capsys.readouterr().err.splitlines() == ["it is broken", "  why: 1 byte differs", "  fix: copy it again"]
    assert list(tmp_path.iterdir()) == []


STOPPED = """
import subprocess, sys, tempfile
from pathlib import Path
from benchmarks.harness import parser, run
from benchmarks.process_tree import run_tree

def measure(args):
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as scratch:
        child = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w')); time.sleep(60)"
        run_tree([sys.executable, "-c", child, sys.argv[1] + "/pid"])

sys.exit(run(measure, parser("x").parse_args([])))
"""


def wait_for(is_so: Callable[[], bool], else_said: str) -> None:
    """Wait for something that takes no time on an idle machine. The bound ends a hang; how long it takes is not judged."""
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline, else_said
        time.sleep(0.02)


def test_a_benchmark_that_is_told_to_stop_leaves_no_child_and_no_files(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path)], cwd=ROOT) as process:
        wait_for(lambda: pid_file.exists() and bool(pid_file.read_text().strip()), "the child has not started")
        assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    child = int(pid_file.read_text())
    wait_for(lambda: read_memory(child) is None, "the child still runs")
    assert list(tmp_path.iterdir()) == [pid_file]


def test_a_report_of_its_own_names_this_machine() -> None:
    made = Report("startup", {})
    assert made.machine["n_cpus"] >= 1 and made.machine["memory_bytes"] > 2**20 and made.machine["cpu"]
    assert made.versions["ondevice-toolkit"]
