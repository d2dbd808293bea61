from __future__ import annotations

import array
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolkit.errors import BackendUnavailableError, FormatError, ToolkitError, UsageError
from toolkit.speech.wav import read_sound


def write(path: Path, values: np.ndarray, *, width: int = 2, rate: int = 16000, channels: int = 1) -> Path:
    """`values` in -1..1, (n,) or (n, channels), as PCM."""
    top = 2 ** (8 * width - 1)
    codes = np.clip(np.rint(values * top), -top, top - 1).astype(np.int64)
    raw = (codes + (128 if width == 1 else 0)).astype("<i8").reshape(-1, 1).view(np.uint8)[:, :width].tobytes()
    with wave.open(str(path), "wb") as stream:
        stream.setnchannels(channels)
        stream.setsampwidth(width)
        stream.setframerate(rate)
        stream.writeframes(raw)
    return path


WAVES = np.sin(np.arange(4000) * 0.07) * 0.9


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_every_width_come_back(width: int, tmp_path: Path) -> None:
    samples = read_sound(write(tmp_path / "a.wav", WAVES, width=width))
    assert isinstance(samples, array.array) and samples.typecode == "f"
    assert np.abs(np.array(samples) - WAVES).max() <= 2.0 ** (1 - 8 * width) + 1e-7


def test_channels_are_averaged_and_the_rate_is_changed(tmp_path: Path) -> None:
    both = np.stack([np.full(4800, 0.5), np.full(4800, -0.1)], 1)
    samples = read_sound(write(tmp_path / "a.wav", both, channels=2, rate=48000))
    assert len(samples) == 1600
    assert np.abs(np.array(samples[400:1200]) - 0.2).max() < 1e-4


def test_a_wav_of_no_sound_at_all_is_read(tmp_path: Path) -> None:
    assert len(read_sound(write(tmp_path / "a.wav", np.zeros(0)))) == 0


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is no sound file\n  why: it is empty, 0 bytes"),
    "a text": (b"These are notes, not sound.\n" * 10, "is no sound file\n  why: it is a text file"),
    "bytes of no format": (bytes(range(256)), "is no sound file\n  why: it begins like no sound file known here"),
    "a header alone": (b"RIFF\0\0\0\0WAVE", "no sound WAV"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_sound_is_refused_in_three_lines(case: str, tmp_path: Path, no_soundfile: None) -> None:
    content, reason = BAD[case]
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=reason) as caught:
        read_sound(path)
    assert len(str(caught.value).splitlines()) == 3


def test_a_truncated_wav_gives_what_is_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", WAVES)
    path.write_bytes(path.read_bytes()[:-1001])
    assert len(read_sound(path)) == 4000 - 501


@pytest.mark.parametrize("width", [5, 6, 7, 8])
def test_samples_wider_than_four_bytes_are_refused_and_not_read_as_noise(width: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", WAVES)
    raw = bytearray(path.read_bytes())
    at = raw.index(b"fmt ") + 20
    raw[at : at + 4] = (width).to_bytes(2, "little") + (8 * width).to_bytes(2, "little")
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="can be read") as caught:
        read_sound(path)
    assert f"{8 * width} bits" in caught.value.why and len(str(caught.value).splitlines()) == 3


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.wav", tmp_path):
        with pytest.raises(UsageError, match="there is no sound file"):
            read_sound(path)


def test_a_header_that_claims_a_day_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", WAVES, rate=1000)
    raw = bytearray(path.read_bytes())
    at = raw.index(b"data") + 4
    raw[at : at + 4] = (2 * 1000 * 86400).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises((UsageError, FormatError)):
        read_sound(path)


@pytest.fixture
def no_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)


@pytest.mark.parametrize(
    "start", [b"RIFF\x40\0\0\0WAVEfmt " + bytes(range(60)), b"fLaC", b"OggS", b"ID3", b"caff", b"FORM", b".snd", b"\xff\xfb\x90"]
)
def test_other_files_need_soundfile_and_say_so(start: bytes, tmp_path: Path, no_soundfile: None) -> None:
    (tmp_path / "a.flac").write_bytes(start + bytes(100))
    with pytest.raises(BackendUnavailableError, match="soundfile"):
        read_sound(tmp_path / "a.flac")


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_mutated_header_is_read_or_refused(changes: list[tuple[int, int]], tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", WAVES[:200])
    raw = bytearray(path.read_bytes())
    for at, value in changes:
        raw[at] = value
    path.write_bytes(raw)
    try:
        read_sound(path)
    except ToolkitError as error:
        assert len(str(error).splitlines()) == 3
