"""A real recording through the real Whisper tiny.en to a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.report_quality import is_grounded, quotes
from converters.cli import main as convert
from converters.speech_clips import load_clips
from mobile_app.cli import main
from mobile_app.transcript import read_transcript
from toolkit.cache import cache_directory

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundles")
    assert convert(["whisper-tiny.en", "--to", "litert", "--recipe", "int8", "--no-verify", "--out", str(out)]) == 0
    return out / "whisper-tiny.en-litert-int8"


def test_a_real_recording_becomes_a_report_with_evidence_for_every_field(bundle: Path, tmp_path: Path) -> None:
    load_clips()
    recording = next(cache_directory("models").rglob("beckett.wav"))
    assert main(["report", str(recording), "--bundle", str(bundle), "--out", str(tmp_path / "out")]) == 0
    document = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    transcript = read_transcript(tmp_path / "out" / "transcript.json")
    assert transcript.text.lower().startswith("ever tried") and transcript.duration_s is not None
    fields = list(quotes(document))
    assert len(fields) >= 4
    assert all(is_grounded(field, transcript) for field in fields)
    assert all(0 <= field["evidence"]["start_s"] < field["evidence"]["end_s"] <= transcript.duration_s + 0.1 for field in fields)


def test_noise_without_speech_makes_no_report(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import random

    from benchmarks.spoken_notes import write_wav

    draw = random.Random(1)
    write_wav(tmp_path / "noise.wav", [draw.uniform(-0.1, 0.1) for _ in range(24_000 * 5)])
    assert main(["report", str(tmp_path / "noise.wav"), "--bundle", str(bundle), "--out", str(tmp_path / "out"), "--language", "en"]) == 1
    assert "no speech was found" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
