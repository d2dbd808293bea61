from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.toolkit.small_manifest import small_bundle
from toolkit.cli import main

pytestmark = pytest.mark.usefixtures("module_cache")


def say(*lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_each_line_is_a_turn_of_one_conversation(
    chat_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say("check the pump", "", "and the valve", monkeypatch=monkeypatch)
    assert main(["chat", str(chat_bundle), "--max-tokens", "12"]) == 0
    captured = capsys.readouterr()
    both = captured.out.splitlines()
    assert len(both) == 2 and all(both)
    assert [line.split(":")[0] for line in captured.err.splitlines()] == ["length", "length"]
    say("and the valve", monkeypatch=monkeypatch)
    assert main(["chat", str(chat_bundle), "--max-tokens", "12"]) == 0
    assert capsys.readouterr().out.splitlines() != both[1:], "the second turn remembers the first"


def test_a_base_model_says_it_cannot_chat_in_three_lines(base_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(base_bundle)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "cannot chat" in lines[0] and "base model" in lines[1] and "toolkit run" in lines[2]


@pytest.mark.parametrize(("target", "way_out"), [("litert", "toolkit transcribe"), ("onnx", "convert SOURCE --to litert")])
def test_a_speech_model_is_called_one_and_not_a_base_model(
    target: str, way_out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = small_bundle(tmp_path / "speech", target=target, chat=False, chat_template=None, spec={"model_type": "whisper"})
    assert main(["chat", str(bundle)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and "speech model" in lines[0] and way_out in lines[2]


def test_a_line_that_does_not_fit_ends_a_piped_chat_with_its_exit_code(
    chat_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say("pump " * 5000, monkeypatch=monkeypatch)
    assert main(["chat", str(chat_bundle)]) == 2
    assert "does not fit" in capsys.readouterr().err


def test_limits_are_refused_before_anything_is_read(chat_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(chat_bundle), "--max-tokens", "0"]) == 2
    assert "max_tokens" in capsys.readouterr().err
