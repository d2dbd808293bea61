"""`voice-notes report` on recordings; a stand-in takes the speech model's place and counts how often it is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mobile_app import transcriber
from mobile_app.cli import main
from mobile_app.transcript import NoteTranscript, join_segments
from tests.mobile_app.test_recording import write_tone
from toolkit.errors import EngineError
from toolkit.speech.transcription import Segment

ROOT = Path(__file__).parents[2]


class Listener:
    """Hears the same words in every recording."""

    def __init__(self) -> None:
        self.n_asked = 0
        self.error: BaseException | None = None

    def __call__(self, recording: Any, place: Path, **options: Any) -> NoteTranscript:
        self.n_asked += 1
        if self.error is not None:
            raise self.error
        options["on_segment"](Segment(0.0, 2.0, "Pump three is leaking.", (), 0.0, -0.1))
        return join_segments([("Pump three is leaking.", 0.0, 2.0)], language="en", duration_s=2.0)


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Listener:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANG", "en_US.UTF-8")
    bundle = tmp_path / "bundles" / "whisper-tiny.en-litert-int8"
    bundle.mkdir(parents=True)
    (bundle / "manifest.json").write_text("{}")
    write_tone(tmp_path / "note.wav")
    write_tone(tmp_path / "other.wav", loudness=0.2)
    stand_in = Listener()
    monkeypatch.setattr(transcriber, "transcribe_recording", stand_in)
    return stand_in


def test_a_recording_becomes_a_report_that_names_its_model(listener: Listener) -> None:
    assert main(["report", "note.wav", "--out", "out"]) == 0
    source = json.loads(Path("out/report.json").read_text("utf-8"))["source"]
    assert (source["name"], source["speech_model"], source["is_truncated"]) == ("note.wav", "whisper-tiny.en-litert-int8", False)


def test_the_same_recording_is_not_listened_to_twice_unless_forced(listener: Listener, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["report", "note.wav", "--out", "out"]
    assert (main(command), main(command), listener.n_asked) == (0, 0, 1)
    assert "is there already" in capsys.readouterr().err
    assert (main([*command, "--force"]), listener.n_asked) == (0, 2)


def test_a_report_of_another_recording_is_refused_before_the_work(listener: Listener, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", "note.wav", "--out", "out"])
    before = Path("out/report.json").read_bytes()
    assert (main(["report", "other.wav", "--out", "out"]), listener.n_asked) == (2, 1)
    assert "another recording" in capsys.readouterr().err
    assert Path("out/report.json").read_bytes() == before
    assert main(["report", "other.wav", "--out", "out", "--force"]) == 0


def test_a_transcript_that_was_changed_is_not_taken_for_the_recordings(listener: Listener) -> None:
    command = ["report", "note.wav", "--out", "out"]
    main(command)
    path = Path("out/transcript.json")
    path.write_text(path.read_text("utf-8").replace("leaking", "perfect"), "utf-8")
    main([*command, "--force"])
    assert listener.n_asked == 2
    assert "leaking" in path.read_text("utf-8")


@pytest.mark.parametrize(
    ("error", "code"), [(EngineError("the engine failed", fix="run it again"), 1), (KeyboardInterrupt(), 130), (ValueError("odd"), 1)]
)
def test_what_ends_the_work_leaves_the_recording_and_no_folder(listener: Listener, error: BaseException, code: int) -> None:
    listener.error = error
    before = Path("note.wav").read_bytes()
    assert main(["report", "note.wav", "--out", "new/out"]) == code
    assert Path("note.wav").read_bytes() == before
    assert not Path("new").exists()


def test_what_ends_the_work_leaves_a_folder_of_the_users(listener: Listener) -> None:
    Path("mine").mkdir()
    Path("mine/photo.jpg").write_bytes(b"x")
    listener.error = KeyboardInterrupt()
    main(["report", "note.wav", "--out", "mine"])
    assert [path.name for path in Path("mine").iterdir()] == ["photo.jpg"]


def unread_pipe() -> int:
    """The writing end of a pipe whose reader has left."""
    unread, written = os.pipe()
    os.close(unread)
    return written


def test_a_watcher_that_has_left_costs_no_report(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changes, os.fdopen(unread_pipe(), "w") as closed:
        changes.setattr(sys, "stderr", closed)
        assert main(["report", "note.wav", "--out", "out"]) == 0
    assert Path("out/report.json").is_file()


@pytest.mark.parametrize("redirection", ["", "2>&-"])
def test_without_a_stderr_the_command_ends_well_and_stdout_holds_json_only(tmp_path: Path, redirection: str) -> None:
    (tmp_path / "said.txt").write_text("Pump three is leaking.")
    command = ["sh", "-c", f'exec "$0" -m mobile_app.cli report --transcript said.txt --json {redirection}', sys.executable]
    with os.fdopen(unread_pipe(), "w") as closed:
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=closed)
    assert done.returncode == 0
    assert json.loads(done.stdout) == json.loads((tmp_path / "said-report" / "report.json").read_text("utf-8"))
