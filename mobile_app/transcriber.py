"""A recording to its transcript, by the toolkit's Whisper. Nothing here is imported before a recording is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mobile_app.messages import refusal
from mobile_app.recording import Recording
from mobile_app.transcript import NoteTranscript, from_toolkit
from toolkit.bundle import Bundle
from toolkit.errors import BackendUnavailableError, ToolkitError, UsageError
from toolkit.speech.quiet import quiet_native
from toolkit.speech.transcription import Segment, transcribe
from toolkit.speech.whisper_decoding import DecodeOptions
from toolkit.speech.whisper_litert import WhisperLiteRt
from toolkit.speech.whisper_text import WhisperVocabulary

FOLDER = Path("bundles")
# Which models understand a language, the smaller first.
MODELS = {"en": ("whisper-tiny.en", "whisper-base"), "ja": ("whisper-base",)}
_ENDING = "-litert-int8"


def find_bundle(asked: str | None, language: str, *, user: str) -> Path:
    """The folder of the speech model: the one asked for, else the first that is there for the language.

    Raises:
        BackendUnavailableError: It is not there; the text holds the command that makes it.
    """
    places = [Path(asked)] if asked else [FOLDER / f"{model}{_ENDING}" for model in MODELS[language]]
    for place in places:
        if (place / "manifest.json").is_file():
            return place
    first = places[0]
    is_known = first.name.endswith(_ENDING)
    model = first.name.removesuffix(_ENDING) if is_known else MODELS[language][0]
    out = first.parent if is_known else FOLDER
    raise refusal(BackendUnavailableError, "no_model", user, folder=first, model=model, out=out)


def transcribe_recording(
    recording: Recording,
    place: Path,
    *,
    name: str,
    language: str | None,
    user: str,
    on_segment: Callable[[Segment], None] | None = None,
) -> NoteTranscript:
    """The transcript of a recording.

    Args:
        recording: Its sound.
        place: The speech model's bundle.
        name: What errors call the recording.
        language: What is spoken; None lets a multilingual model say.
        user: Language of refusals.
        on_segment: Gets each segment as soon as it is there.

    Raises:
        ToolkitError: Nobody was heard.
        UsageError: The model does not know the language.
        FormatError: The bundle is damaged.
        BackendUnavailableError: LiteRT is not installed.
    """
    bundle = Bundle.open(place)
    with quiet_native():
        model = WhisperLiteRt.open(bundle, n_threads=2)
    try:
        options = _options(model, bundle, language, user)
        vocabulary = WhisperVocabulary(bundle.path / "tokenizer.json")
        spoken = transcribe(model, vocabulary, recording.samples, options, on_segment=on_segment)
    finally:
        with quiet_native():
            model.close()
    transcript = from_toolkit(spoken, language=language)
    if not any(char.isalnum() for char in transcript.text):
        raise refusal(ToolkitError, "no_speech", user, name=name, seconds=recording.seconds, level=recording.level)
    return transcript


def _options(model: WhisperLiteRt, bundle: Bundle, language: str | None, user: str) -> DecodeOptions:
    if model.tokens.is_multilingual:
        return DecodeOptions(language=language)
    if language not in (None, "en"):
        raise refusal(UsageError, "english_only", user, bundle=bundle.path.name, language=language)
    return DecodeOptions()
