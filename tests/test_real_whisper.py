"""Whisper tiny.en, from its package to a transcript of a real recording."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from converters.cli import main as convert
from converters.speech_clips import load_clips
from converters.targets.onnx_whisper_sherpa import hear
from converters.wer import ErrorCount, word_errors
from toolkit import Bundle
from toolkit.cli import main as toolkit

pytestmark = pytest.mark.real

OPENING = "It was the best of times, it was the worst of times"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both, from one read."""
    out = tmp_path_factory.mktemp("bundles")
    assert convert(["whisper-tiny.en", "--to", "litert,onnx", "--recipe", "int8", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def bundle(bundles: Path) -> Path:
    return bundles / "whisper-tiny.en-litert-int8"


@pytest.fixture(scope="module")
def recording(bundle: Path) -> Path:
    """two_cities.wav, which converting the model has fetched to measure it."""
    from toolkit.cache import cache_directory

    load_clips()
    return next(cache_directory("models").rglob("two_cities.wav"))


@pytest.mark.parametrize("target", ["litert", "onnx"])
def test_int8_hears_what_its_checkpoint_hears(target: str, bundles: Path) -> None:
    fidelity = Bundle.open(bundles / f"whisper-tiny.en-{target}-int8", full_check=True).manifest.fidelity
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


def test_sherpa_onnx_opens_the_onnx_bundle_and_writes_down_what_the_checkpoint_does(bundles: Path) -> None:
    """With a front end of its own, and ten seconds of silence instead of a whole window."""
    pytest.importorskip("sherpa_onnx", reason="pip install 'ondevice-toolkit[speech]'")
    bundle = bundles / "whisper-tiny.en-onnx-int8"
    manifest = Bundle.open(bundle, full_check=True).manifest
    assert manifest.fidelity is not None and manifest.fidelity.reference_word_error_rate is not None
    errors = ErrorCount(0, 0)
    for clip in load_clips():
        heard = hear(bundle, np.asarray(clip.samples, np.float32), language=clip.language)
        errors += word_errors(clip.text, heard)
        assert clip.name != "two_cities.wav from 0.0 s" or heard.strip().startswith(OPENING)
    assert errors.n_reference == 131 and errors.rate == pytest.approx(manifest.fidelity.reference_word_error_rate)
    assert word_errors(load_clips()[0].text, "").rate == 1.0, "the twin: an empty text, as of a graph that fails, is all wrong"


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
