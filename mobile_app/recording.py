"""A recording as it comes from a device: is it sound, is all of it there, is anybody to be heard?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from mobile_app.messages import refusal
from toolkit.errors import BackendUnavailableError, FormatError, ToolkitError, UsageError
from toolkit.speech.resample import Samples
from toolkit.speech.wav import SAMPLE_RATE, NoSound, read_sound, why_no_sound

LEAST_SECONDS = 0.2
# Below this the microphone was off, muted or covered: the noise of a quiet room in a phone is louder.
SILENCE = 10 ** (-60 / 20)
_JAPANESE = {
    NoSound.EMPTY: "ファイルが空です（0 バイト）",
    NoSound.TEXT: "テキストファイルです",
    NoSound.UNKNOWN: "先頭がどの音声形式とも一致しません",
}
_UNKNOWN_SIZE = 0x7FFFF000  # programs that write to a pipe leave a size like this, and mean: to the end


@dataclass(frozen=True)
class Recording:
    """Sound at 16 kHz that is worth listening to."""

    samples: Samples
    is_truncated: bool

    @property
    def seconds(self) -> float:
        return len(self.samples) / SAMPLE_RATE

    @property
    def level(self) -> str:
        """The loudest sample, for people."""
        return level(self.samples)


def level(samples: Samples) -> str:
    """The loudest sample, like `-31 dBFS`."""
    peak = _peak(samples)
    return f"{20 * math.log10(peak):.0f} dBFS" if peak > 0 else "zero (digital silence)"


def _peak(samples: Samples) -> float:
    return max(max(samples), -min(samples)) if len(samples) else 0.0


def open_recording(path: Path, language: str) -> Recording:
    """Read a recording.

    Args:
        path: A WAV file; other formats where soundfile is installed.
        language: Of refusals.

    Raises:
        UsageError: There is no such file, it is a folder, or it is too long.
        FormatError: It is no sound, or a damaged one.
        ToolkitError: It is too short or silent.
        BackendUnavailableError: It takes a decoder that is not installed.
    """
    if not path.is_file():
        raise refusal(UsageError, "no_plain_file" if path.exists() else "no_file", language, name=path)
    try:
        samples = read_sound(path)
    except FormatError as error:
        raise refusal(FormatError, "not_sound", language, name=path.name, why=_why_no_sound(path, error, language)) from error
    except BackendUnavailableError as error:
        raise refusal(BackendUnavailableError, "no_decoder", language, name=path.name) from error
    seconds = len(samples) / SAMPLE_RATE
    if seconds < LEAST_SECONDS:
        raise refusal(ToolkitError, "too_short", language, name=path.name, seconds=seconds, least=LEAST_SECONDS)
    if _peak(samples) < SILENCE:
        raise refusal(ToolkitError, "silent", language, name=path.name, level=level(samples))
    return Recording(samples, is_cut_short(path))


def _why_no_sound(path: Path, error: FormatError, language: str) -> str:
    kind = why_no_sound(path)
    if kind is None:
        return error.why or error.what
    return _JAPANESE[kind] if language == "ja" else kind.value


def is_cut_short(path: Path) -> bool:
    """Whether a WAV file ends before its header says: the recorder was killed, or the copy was."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            if (head := stream.read(12))[:4] != b"RIFF" or head[8:] != b"WAVE":
                return False
            at = 12
            while len(chunk := stream.read(8)) == 8:
                length = int.from_bytes(chunk[4:], "little")
                if chunk[:4] == b"data":
                    return length < _UNKNOWN_SIZE and at + 8 + length > size
                at += 8 + length + length % 2
                stream.seek(at)
    except OSError:
        return False
    return False
