"""Tables of kept runs: the newest one of each, every figure in its column."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import Report, Target
from benchmarks.tables import newest_runs, render
from toolkit.errors import FormatError

MACHINE = {"cpu": "test", "n_cpus": 2, "python": "3.11", "busy_cpus": 0.1}


def kept(folder: Path, model: str, seconds: float) -> None:
    report = Report("conversion_cost", {"model": model}, machine=MACHINE, versions={"ondevice-toolkit": "0"})
    report.add("convert", "wall_s", [seconds, seconds + 2, seconds + 1], Target("at most", 60.0))
    report.add("convert", "peak_rss_bytes", [2**30])
    report.append_to(folder)


def test_the_newest_run_of_each_model_is_shown(tmp_path: Path) -> None:
    for model, seconds in (("a", 10.0), ("b", 70.0), ("a", 20.0)):
        kept(tmp_path, model, seconds)
    text = render(newest_runs(tmp_path), is_all=False)
    assert "| convert: wall_s | 3 | 20.00 s | 21.00 s | 22.00 s | at most 60.00 s | met |" in text
    assert "| convert: wall_s | 3 | 70.00 s | 71.00 s | 72.00 s | at most 60.00 s | **missed** |" in text
    assert "10.00 s" not in text and "1 GiB" not in text
    assert text.index("### conversion_cost a") < text.index("### conversion_cost b")


def test_figures_without_a_target_are_shown_when_asked_for(tmp_path: Path) -> None:
    kept(tmp_path, "a", 10.0)
    assert "| convert: peak_rss_bytes | 1 | 1 GiB | 1 GiB | 1 GiB | | |" in render(newest_runs(tmp_path), is_all=True)


def test_no_results_are_no_tables(tmp_path: Path) -> None:
    assert render(newest_runs(tmp_path / "none"), is_all=True) == ""


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"settings": {}}'])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    kept(tmp_path, "a", 1.0)
    with (tmp_path / "conversion_cost.jsonl").open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(FormatError, match="conversion_cost.jsonl, line 2, is no record"):
        newest_runs(tmp_path)
