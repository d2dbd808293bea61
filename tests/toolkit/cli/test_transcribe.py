"""The command on a tiny random Whisper: what it says means nothing, but its form, its times and its refusals are those of any."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import pytest

from tests.tiny_speech import TinySpeech, sound, speech_bundle
from tests.toolkit.small_manifest import small_bundle
from toolkit.cli import main
from toolkit.cli.transcribe import _clock

DURATION_S = 2.5


@pytest.fixture
def bundle(tiny_speech: TinySpeech, own_folders: Path) -> Path:
    return speech_bundle(tiny_speech, own_folders / "tiny-litert-fp32")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    with wave.open(str(tmp_path / "note.wav"), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes((sound(n_samples=int(16_000 * DURATION_S)) * 20_000).astype(np.int16).tobytes())
    return tmp_path / "note.wav"


def test_lines_and_json_say_the_same(bundle: Path, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", str(bundle), str(recording), "--language", "en", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"text", "language", "duration_s", "elapsed_s", "segments"}
    assert (answer["language"], answer["duration_s"]) == ("en", DURATION_S) and answer["elapsed_s"] > 0
    times = [(segment["start_s"], segment["end_s"]) for segment in answer["segments"]]
    assert all(0 <= start <= end <= DURATION_S + 0.1 for start, end in times) and times == sorted(times)
    assert main(["transcribe", str(bundle), str(recording), "--language", "en"]) == 0
    out, err = capsys.readouterr()
    assert [line[:17] for line in out.splitlines()] == [f"{_clock(start)} - {_clock(end)}" for start, end in times]
    assert f"{DURATION_S} s of sound" in err


def test_the_language_is_found_where_none_is_given(bundle: Path, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", str(bundle), str(recording), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["language"] in ("en", "ja", "haw")


@pytest.mark.parametrize(("arguments", "said"), [(["--language", "xx"], "xx"), (["--threads", "0"], "0"), (["--threads", "65"], "65")])
def test_what_the_model_cannot_do_is_a_usage_error(
    arguments: list[str], said: str, bundle: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transcribe", str(bundle), str(recording), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 3 and said in err


def test_a_bundle_that_hears_nothing_is_a_usage_error(recording: Path, own_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", str(small_bundle(own_folders / "small")), str(recording)]) == 2
    assert "it is a llama for litert" in capsys.readouterr().err


def test_a_damaged_model_is_refused_before_native_code_sees_it(bundle: Path, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray((bundle / "model.tflite").read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / "model.tflite").write_bytes(data)
    assert main(["transcribe", str(bundle), str(recording), "--full-check"]) == 4
    assert "model.tflite" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "why"), [(b"pump three leaks\n", "text file"), (b"", "empty"), (bytes(range(256)), "known here")])
def test_a_file_that_is_no_sound_is_a_bad_file(
    content: bytes, why: str, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_bytes(content)
    assert main(["transcribe", str(bundle), str(tmp_path / "x")]) == 4
    err = capsys.readouterr().err
    assert why in err and "soundfile" not in err and len(err.splitlines()) == 3


@pytest.mark.parametrize(("seconds", "shown"), [(0.0, "00:00.0"), (62.46, "01:02.5"), (59.96, "01:00.0"), (3600.0, "60:00.0")])
def test_times_are_minutes_seconds_and_tenths(seconds: float, shown: str) -> None:
    assert _clock(seconds) == shown
