"""Whisper tiny.en, from its package to a transcript of a real recording."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from converters.cli import main as convert
from converters.speech_clips import load_clips
from converters.wer import ErrorCount, word_errors
from toolkit import Bundle
from toolkit.cli import main as toolkit

pytestmark = pytest.mark.real

OPENING = "It was the best of times, it was the worst of times"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundles")
    assert convert(["whisper-tiny.en", "--to", "litert", "--recipe", "int8", "--out", str(out)]) == 0
    return out / "whisper-tiny.en-litert-int8"


@pytest.fixture(scope="module")
def recording(bundle: Path) -> Path:
    """two_cities.wav, which converting the model has fetched to measure it."""
    from toolkit.cache import cache_directory

    load_clips()
    return next(cache_directory("models").rglob("two_cities.wav"))


def test_int8_hears_what_its_checkpoint_hears(bundle: Path) -> None:
    fidelity = Bundle.open(bundle, full_check=True).manifest.fidelity
    assert fidelity is not None and fidelity.verdict == "pass"
    assert 0 < fidelity.kl_mean < 0.01
    assert fidelity.word_error_rate is not None and fidelity.reference_word_error_rate is not None
    assert fidelity.word_error_rate <= fidelity.reference_word_error_rate + 0.02 < 0.05


def test_a_recording_longer_than_a_window_is_written_down_with_its_times(
    bundle: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert toolkit(["transcribe", str(bundle), str(recording), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    said = " ".join(clip.text for clip in load_clips() if clip.name.startswith("two_cities"))
    assert answer["text"].startswith(OPENING) and answer["duration_s"] > 40
    assert word_errors(said, answer["text"]).rate <= 0.02
    times = [(segment["start_s"], segment["end_s"]) for segment in answer["segments"]]
    assert all(start < end for start, end in times) and times == sorted(times) and times[-1][1] <= answer["duration_s"] + 0.1


def test_the_error_rate_sees_a_sentence_left_out() -> None:
    """Must-fail twin: a transcript that misses a seventh of the recording is no good one."""
    said = " ".join(clip.text for clip in load_clips() if clip.name.startswith("two_cities"))
    assert word_errors(said, said) == ErrorCount(0, len(said.split()))
    assert word_errors(said, " ".join(said.split()[20:])).rate > 0.1


@pytest.mark.parametrize("arguments", [["--language", "ja"], ["--threads", "0"]])
def test_what_the_model_cannot_do_is_refused(
    bundle: Path, recording: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert toolkit(["transcribe", str(bundle), str(recording), *arguments]) == 2
    assert "why: " in capsys.readouterr().err
