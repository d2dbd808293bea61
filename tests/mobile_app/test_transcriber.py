from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mobile_app import transcriber
from mobile_app.recording import Recording
from mobile_app.transcriber import find_bundle, transcribe_recording
from mobile_app.transcript import NoteTranscript
from toolkit.errors import BackendUnavailableError, ToolkitError, UsageError
from toolkit.speech.transcription import Segment, Transcript


class FakeModel:
    """Takes the place of a Whisper; says whether it was closed."""

    def __init__(self, *, is_multilingual: bool) -> None:
        self.tokens = SimpleNamespace(is_multilingual=is_multilingual)
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the model is and what it hears; the options it was asked with are put there."""
    state: dict[str, Any] = {"model": FakeModel(is_multilingual=False), "text": " Pump three leaks."}

    def fake_transcribe(model: Any, vocabulary: Any, samples: Any, options: Any, *, on_segment: Any) -> Transcript:
        state["options"] = options
        segments = (Segment(0.0, 2.0, state["text"], (), 0.0, -0.1),) if state["text"] else ()
        return Transcript(state["text"], segments, None, 2.0)

    monkeypatch.setattr(transcriber, "Bundle", SimpleNamespace(open=lambda place: SimpleNamespace(path=Path(place))))
    monkeypatch.setattr(transcriber, "WhisperLiteRt", SimpleNamespace(open=lambda bundle, n_threads: state["model"]))
    monkeypatch.setattr(transcriber, "WhisperVocabulary", lambda path: None)
    monkeypatch.setattr(transcriber, "transcribe", fake_transcribe)
    return state


def listen(language: str | None) -> NoteTranscript:
    import array

    recording = Recording(array.array("f", [0.1] * 32_000), is_truncated=False)
    return transcribe_recording(recording, Path("bundle"), name="note.wav", language=language, user="en")


def test_what_was_heard_becomes_a_transcript_with_times(heard: dict[str, Any]) -> None:
    transcript = listen(None)
    assert (transcript.text, transcript.times(0, 4), transcript.duration_s) == ("Pump three leaks.", (0.0, 2.0), 2.0)
    assert heard["model"].is_closed


def test_an_english_only_model_is_told_no_language_and_refuses_another(heard: dict[str, Any]) -> None:
    listen("en")
    assert heard["options"].language is None
    with pytest.raises(UsageError, match="understands English only"):
        listen("ja")
    assert heard["model"].is_closed


def test_a_multilingual_model_is_told_the_language(heard: dict[str, Any]) -> None:
    heard["model"] = FakeModel(is_multilingual=True)
    assert listen("ja").language == "ja"
    assert heard["options"].language == "ja"


@pytest.mark.parametrize("text", ["", " ...", " ♪"])
def test_a_recording_in_which_nobody_speaks_is_refused(heard: dict[str, Any], text: str) -> None:
    heard["text"] = text
    with pytest.raises(ToolkitError, match="no speech was found in note.wav"):
        listen(None)
    assert heard["model"].is_closed


def test_the_first_model_that_is_there_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = tmp_path / "bundles" / "whisper-base-litert-int8"
    base.mkdir(parents=True)
    (base / "manifest.json").write_text("{}")
    assert find_bundle(None, "en", user="en") == find_bundle(None, "ja", user="en") == base.relative_to(tmp_path)
    with pytest.raises(BackendUnavailableError) as raised:
        find_bundle("mine/whisper-small-litert-int8", "en", user="en")
    assert raised.value.fix == "convert whisper-small --to litert --recipe int8 --out mine"
