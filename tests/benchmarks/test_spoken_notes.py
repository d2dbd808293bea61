from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from benchmarks.spoken_notes import main, with_noise, write_wav
from mobile_app.recording import open_recording

TONE = [0.5 * math.sin(index / 10) for index in range(24_000)]


@pytest.mark.parametrize("snr_db", [0.0, 10.0, 30.0])
def test_noise_stands_at_the_level_that_was_asked_for(snr_db: float) -> None:
    noisy = with_noise(TONE, snr_db)
    power = sum(value**2 for value in TONE) / len(TONE)
    noise = sum((mixed - clean) ** 2 for mixed, clean in zip(noisy, TONE, strict=True)) / len(TONE)
    assert abs(10 * math.log10(power / noise) - snr_db) < 0.2
    assert with_noise(TONE, snr_db) == noisy, "the same every time"


def test_what_is_written_can_be_heard(tmp_path: Path) -> None:
    write_wav(tmp_path / "set" / "note.wav", [*TONE, 2.0, -2.0])
    assert round(open_recording(tmp_path / "set" / "note.wav", "en").seconds, 2) == 1.0


def test_without_a_voice_it_says_which_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "hibari", None)
    assert main([str(tmp_path / "out")]) == 5
    assert "pip install hibari-tts" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_level_nobody_can_mean_is_refused(tmp_path: Path) -> None:
    assert main([str(tmp_path), "--snr-db", "nan"]) == 2
