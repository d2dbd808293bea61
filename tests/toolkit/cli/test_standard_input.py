"""Prompts from stdin, and a stdin that is none."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.cli import standard_input
from toolkit.errors import UsageError


@pytest.mark.parametrize("read", [standard_input.read_prompt, standard_input.read_line])
def test_an_endless_line_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch, read: object) -> None:
    monkeypatch.setattr(standard_input, "MOST_CHARACTERS", 100)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\0" * 1000))
    with pytest.raises(UsageError, match="too long"):
        read()  # type: ignore[operator]
    monkeypatch.setattr(sys, "stdin", io.StringIO("x" * 100))
    assert read() == "x" * 100  # type: ignore[operator]


def test_lines_come_one_by_one_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\ntwo"))
    assert [standard_input.read_line() for _ in range(4)] == ["one", "", "two", None]


@pytest.mark.parametrize("command", [["run", "-"], ["chat"]])
def test_a_closed_stdin_is_refused_in_three_lines(chat_bundle: Path, command: list[str]) -> None:
    words = [sys.executable, "-m", "toolkit.cli", command[0], str(chat_bundle), *command[1:]]
    closed = "import os, sys; os.close(0); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", closed, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no stdin" in done.stderr and "AttributeError" not in done.stderr
