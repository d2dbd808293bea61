from __future__ import annotations

import io

import pytest

from toolkit import progress as progress_module
from toolkit.progress import ByteLines, Silent, byte_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_one_line_a_stage_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with byte_progress(stream).stage("Fetching x", 3 * 2**20) as step:
        step.advance(2**20)
    assert stream.getvalue() == "Fetching x (3 MiB)\n"


def test_a_long_stage_reports_its_share_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_LINE_EVERY_S", 0.0)
    stream = io.StringIO()
    with ByteLines(stream).stage("Fetching x", 4 * 2**20) as step:
        step.advance(2**20)
        step.advance(2**20)
    assert stream.getvalue().splitlines()[1:] == ["  Fetching x: 1 MiB, 25 %", "  Fetching x: 2 MiB, 50 %"]


def test_a_stage_of_unknown_size_prints_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_LINE_EVERY_S", 0.0)
    stream = io.StringIO()
    with ByteLines(stream).stage("Fetching x") as step:
        step.advance(2**20)
    assert stream.getvalue() == "Fetching x\n"


def test_a_terminal_gets_a_bar_and_notes_as_they_are() -> None:
    stream = Terminal()
    progress = byte_progress(stream)
    progress.note("[bold] is no markup here")
    with progress.stage("Fetching x", 100) as step:
        step.advance(100)
    assert "[bold] is no markup here" in stream.getvalue()
    assert "Fetching x" in stream.getvalue()
    assert "100/100" in stream.getvalue()


def test_silence_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Silent()
    silent.note("something")
    with silent.stage("Fetching x", 100) as step:
        step.advance(100)
    assert capsys.readouterr() == ("", "")
