from __future__ import annotations

import math
import wave
from pathlib import Path

import pytest

from mobile_app.recording import is_cut_short, open_recording
from toolkit.errors import FormatError, ToolkitError, UsageError


def write_tone(path: Path, *, seconds: float = 1.0, loudness: float = 0.3, rate: int = 16_000) -> Path:
    """A tone of 440 Hz as a WAV file of 16 bits."""
    samples = [round(32767 * loudness * math.sin(2 * math.pi * 440 * index / rate)) for index in range(round(seconds * rate))]
    with wave.open(str(path), "wb") as stream:
        stream.setnchannels(1)
        stream.setsampwidth(2)
        stream.setframerate(rate)
        stream.writeframes(b"".join(value.to_bytes(2, "little", signed=True) for value in samples))
    return path


def test_a_recording_with_sound_is_opened(tmp_path: Path) -> None:
    recording = open_recording(write_tone(tmp_path / "note.wav"), "en")
    assert (round(recording.seconds, 2), recording.is_truncated, recording.level) == (1.0, False, "-10 dBFS")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"pump three leaks\n", "it is a text file"),
        ("ポンプから油漏れ\n".encode(), "it is a text file"),
        (b"", "it is empty, 0 bytes"),
        (bytes(range(256)), "it begins like no sound file"),
        (b"RIFF\x00\x00\x00\x00WAVE", ""),
        (b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00", ""),
    ],
)
def test_what_is_no_sound_is_refused_with_the_reason(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "note.wav").write_bytes(content)
    with pytest.raises(FormatError, match="note.wav is not a recording") as raised:
        open_recording(tmp_path / "note.wav", "en")
    assert raised.value.why and why in raised.value.why
    assert (tmp_path / "note.wav").read_bytes() == content


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no recording"):
        open_recording(tmp_path / "none.wav", "en")


def test_a_folder_is_not_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a recording") as raised:
        open_recording(tmp_path, "en")
    assert raised.value.why == "it is a folder or a device, not a file"


def test_ten_milliseconds_and_silence_are_refused_before_any_model_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="too short"):
        open_recording(write_tone(tmp_path / "short.wav", seconds=0.01), "en")
    with pytest.raises(ToolkitError, match="holds no sound") as silent:
        open_recording(write_tone(tmp_path / "silent.wav", loudness=0.0), "en")
    assert "digital silence" in silent.value.why
    with pytest.raises(ToolkitError, match="holds no sound"):
        open_recording(write_tone(tmp_path / "faint.wav", loudness=0.0005), "en")


def test_refusals_speak_japanese(tmp_path: Path) -> None:
    (tmp_path / "note.wav").write_bytes(b"")
    with pytest.raises(FormatError) as empty:
        open_recording(tmp_path / "note.wav", "ja")
    assert empty.value.why == "ファイルが空です（0 バイト）"
    with pytest.raises(ToolkitError, match="音が入っていません"):
        open_recording(write_tone(tmp_path / "silent.wav", loudness=0.0), "ja")


def test_a_recording_that_was_cut_short_is_used_and_marked(tmp_path: Path) -> None:
    path = write_tone(tmp_path / "note.wav", seconds=2.0)
    assert not is_cut_short(path)
    path.write_bytes(path.read_bytes()[:32_044])
    recording = open_recording(path, "en")
    assert (round(recording.seconds, 2), recording.is_truncated) == (1.0, True)


def test_a_header_that_says_to_the_end_is_no_cut(tmp_path: Path) -> None:
    path = write_tone(tmp_path / "note.wav")
    raw = bytearray(path.read_bytes())
    raw[40:44] = b"\xff\xff\xff\xff"
    path.write_bytes(raw)
    assert not is_cut_short(path)
