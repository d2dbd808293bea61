import io

import pytest
from rich.console import Console

from converters.progress import StageBars, StageLines, stage_progress


def test_lines_say_start_tenths_and_end():
    stream = io.StringIO()
    with StageLines(stream).stage("writing", total=20) as step:
        for _ in range(20):
            step.advance()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "writing ..." and lines[-1].startswith("writing: ") and lines[-1].endswith(" s")
    assert lines[1:-1] == [f"  writing: {tenth} %" for tenth in range(10, 100, 10)]


def test_a_stage_without_a_total_counts_nothing():
    stream = io.StringIO()
    with StageLines(stream).stage("lowering") as step:
        step.advance(5)
    assert len(stream.getvalue().splitlines()) == 2


def test_a_stage_that_fails_says_that_it_stopped():
    stream = io.StringIO()
    with pytest.raises(ValueError), StageLines(stream).stage("lowering"):
        raise ValueError
    assert "lowering: stopped after" in stream.getvalue()


def test_bars_may_be_nested_and_report_each_end():
    stream = io.StringIO()
    bars = StageBars(Console(file=stream, force_terminal=True, width=100))
    with bars.stage("outer"), bars.stage("inner", total=2) as step:
        step.advance()
        bars.note("a [fact] with brackets")
    with bars.stage("next"):
        pass
    text = stream.getvalue()
    assert "inner: " in text and "outer: " in text and "next: " in text and "a [fact] with brackets" in text


def test_a_failing_stage_leaves_the_bars_usable():
    stream = io.StringIO()
    bars = StageBars(Console(file=stream, force_terminal=True, width=100))
    with pytest.raises(ValueError), bars.stage("outer"), bars.stage("inner"):
        raise ValueError
    with bars.stage("again"):
        pass
    assert "again: " in stream.getvalue() and "outer: " not in stream.getvalue().replace("outer ", "")


def test_a_pipe_gets_lines_and_a_terminal_gets_bars(monkeypatch):
    stream = io.StringIO()
    assert isinstance(stage_progress(stream), StageLines)
    monkeypatch.setattr(stream, "isatty", lambda: True)
    assert isinstance(stage_progress(stream), StageBars)
