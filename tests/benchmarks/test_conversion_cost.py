"""What is read from `convert`'s progress, and the cold cache it gets. Nothing is converted here."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from benchmarks.conversion_cost import BARE, OURS, _add_figures, refusals, stage_at, stage_seconds, work_cache
from benchmarks.harness import Report
from benchmarks.process_tree import TreeRun
from converters.progress import StageLines
from toolkit.cache import CACHE_VARIABLE

LINES = [
    (0.1, "reading smollm2 ..."),
    (0.5, "reading smollm2: 0.4 s"),
    (0.6, "disk: about 2.1 GiB of work files, 750 MiB of bundles"),
    (1.0, "litert: lowering ..."),
    (1.1, "tensors ..."),
    (2.0, "  tensors: 50 %"),
    (3.0, "tensors: 1.9 s"),
    (61.0, "litert: lowering: 60.0 s"),
    (62.0, "tensors ..."),
    (63.0, "tensors: 1.0 s"),
]


def test_seconds_are_read_by_title_and_a_title_seen_again_adds_up() -> None:
    assert stage_seconds(LINES) == {"reading smollm2": 0.4, "tensors": 2.9, "litert: lowering": 60.0}


def test_what_convert_prints_is_what_is_read() -> None:
    stream = io.StringIO()
    with StageLines(stream).stage("litert: quantizing int8"):
        pass
    lines = [(0.0, line) for line in stream.getvalue().splitlines()]
    assert stage_seconds(lines) == {"litert: quantizing int8": 0.0}
    assert stage_at(lines[:1], 1.0) == "litert: quantizing int8"


@pytest.mark.parametrize(
    ("at_s", "stage"),
    [(0.3, "reading smollm2"), (0.7, "between stages"), (2.0, "tensors"), (30.0, "litert: lowering"), (62.5, "tensors")],
)
def test_the_stage_of_a_moment_is_the_innermost_that_runs(at_s: float, stage: str) -> None:
    assert stage_at(LINES, at_s) == stage


def test_the_cold_cache_holds_the_weights_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "warm"))
    (tmp_path / "warm" / "models" / "smollm2").mkdir(parents=True)
    (tmp_path / "warm" / "convert").mkdir()
    cold = work_cache(tmp_path / "scratch")
    assert [path.name for path in cold.iterdir()] == ["models"]
    assert [path.name for path in (cold / "models").iterdir()] == ["smollm2"]


def runs(*walls: float, peak: int) -> list[TreeRun]:
    return [TreeRun(wall_s=wall, peak_rss_bytes=peak, peak_anonymous_bytes=1, largest_process_rss_bytes=1, stderr=LINES) for wall in walls]


def test_targets_are_judged_on_convert_and_on_the_ratio() -> None:
    report = Report("conversion_cost", {})
    costs = {OURS: runs(120.0, 130.0, peak=2_900_000_000), BARE: runs(100.0, 100.0, peak=3_500_000_000)}
    _add_figures(report, "smollm2-135m-instruct", costs)
    figures = {(figure.subject, figure.name): figure for figure in report.figures}
    ratio = figures[f"{OURS} / {BARE}", "wall_ratio"]
    assert ratio.values == (1.2, 1.3) and not ratio.is_met
    peak = figures[OURS, "peak_rss_bytes"]
    assert peak.target is not None and peak.is_met
    assert figures[BARE, "peak_rss_bytes"].target is None
    assert figures[f"{OURS}: litert: lowering", "stage_s"].values == (60.0, 60.0)


def test_one_side_alone_has_no_ratio() -> None:
    report = Report("conversion_cost", {})
    _add_figures(report, "gemma-3-270m", {OURS: runs(200.0, peak=4_600_000_000), BARE: []})
    assert [figure.name for figure in report.missed] == ["peak_rss_bytes"]
    assert all(figure.name != "wall_ratio" for figure in report.figures)


def test_bundles_refused_at_a_gate_are_named_with_the_cause() -> None:
    error = {"what": "int8 differs", "why": "kl_mean 0.0487 must be <= 0.03", "fix": "x", "code": 6}
    answer = {"bundles": [{"recipe": "fp32"}, {"recipe": "int8", "error": error}], "error": error}
    assert refusals(answer) == {"int8": "kl_mean 0.0487 must be <= 0.03"}
    assert refusals({"bundles": [{"recipe": "fp32"}]}) == {}
