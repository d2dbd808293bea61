"""What was said in a note: one text, and which stretch of it belongs to which stretch of sound."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mobile_app.messages import no_file_why
from toolkit.errors import FormatError, UsageError
from toolkit.json_depth import check_json_depth

if TYPE_CHECKING:
    from toolkit.speech.transcription import Transcript

MAX_FILE_BYTES = 16 * 2**20
MOST_SECONDS = 1e9  # thirty years: no recording
_FIX = "give what `toolkit transcribe BUNDLE NOTE.wav --json` prints, or a plain text file in UTF-8"
# Line ends and other controls are not speech; halves of surrogate pairs could not be written to any file again.
_UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# What steers a terminal (`ESC [ 31 m`, a window's title) or turns the order of a line around has no sound: no space stands for it.
_STEERING = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\u202a-\u202e\u2066-\u2069]")
_JAPANESE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uff66-\uff9f]")


@dataclass(frozen=True)
class SpokenSegment:
    """text[start:end] of a transcript was said from `start_s` to `end_s`; None where nobody knows when."""

    start: int
    end: int
    start_s: float | None
    end_s: float | None


@dataclass(frozen=True)
class NoteTranscript:
    """Everything later is a span of `text`. `duration_s` is None for a transcript without sound."""

    text: str
    segments: tuple[SpokenSegment, ...]
    language: str
    duration_s: float | None

    def times(self, start: int, end: int) -> tuple[float | None, float | None]:
        """When text[start:end] was said: from the start of the first segment it touches to the end of the last.

        Whole segments, because only their times were measured: whoever listens there hears every word of it.
        """
        first = bisect_right(self.segments, start, key=lambda segment: segment.end)
        last = bisect_left(self.segments, end, key=lambda segment: segment.start) - 1
        if first > last or self.segments[first].start_s is None or self.segments[last].end_s is None:
            return None, None
        return self.segments[first].start_s, self.segments[last].end_s

    def as_json(self) -> dict[str, Any]:
        """The object written to `transcript.json`; evidence spans count its `text`'s characters."""
        return {
            "language": self.language,
            "duration_s": self.duration_s,
            "text": self.text,
            "segments": [{**vars(segment), "text": self.text[segment.start : segment.end]} for segment in self.segments],
        }


def language_of(text: str) -> str:
    """`ja` if a tenth of the letters are Japanese, else `en`."""
    letters = sum(char.isalpha() for char in text)
    return "ja" if letters and 10 * len(_JAPANESE.findall(text)) >= letters else "en"


def speakable(text: str) -> str:
    """`text` in one line of what can be said, written to any file and shown anywhere."""
    return " ".join(_UNSPEAKABLE.sub(" ", _STEERING.sub("", text)).split())


def join_segments(
    parts: list[tuple[str, float | None, float | None]], *, language: str | None = None, duration_s: float | None = None
) -> NoteTranscript:
    """A transcript of (text, start_s, end_s) in order. Segments join with a space, in Japanese with nothing."""
    text, segments = "", []
    for said, start_s, end_s in parts:
        if not (said := speakable(said)):
            continue
        if text and not (_is_japanese(text[-1]) or _is_japanese(said[0])):
            text += " "
        segments.append(SpokenSegment(len(text), len(text) + len(said), start_s, end_s))
        text += said
    return NoteTranscript(text, tuple(segments), language or language_of(text), duration_s)


def _is_japanese(char: str) -> bool:
    return bool(_JAPANESE.match(char)) or char in "、。「」？！・"


def from_toolkit(transcript: Transcript, *, language: str | None = None) -> NoteTranscript:
    """The transcript of `toolkit.speech`."""
    parts: list[tuple[str, float | None, float | None]] = [(part.text, part.start_s, part.end_s) for part in transcript.segments]
    return join_segments(parts, language=language or _known(transcript.language), duration_s=transcript.duration_s)


def _known(language: str | None) -> str | None:
    return language if language in ("en", "ja") else None


def read_transcript(path: Path, *, language: str | None = None) -> NoteTranscript:
    """A transcript file: the JSON of `toolkit transcribe --json`, or plain text, one segment a line, without times.

    A file is JSON if it is called so or begins like an object; a text may begin with `[music]`.

    Raises:
        UsageError: There is no such file, or it is larger than 16 MiB.
        FormatError: It is neither.
    """
    if not path.is_file():
        raise UsageError(f"there is no transcript {path}", why=no_file_why(path), fix=_FIX)
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise UsageError(f"{path.name} is too large", why=f"{size} bytes, at most {MAX_FILE_BYTES} are taken", fix="cut it into parts")
    try:
        raw = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unsound(path, f"byte {error.start} is not UTF-8") from error
    except OSError as error:
        raise _unsound(path, error.strerror or str(error)) from error
    if path.suffix.lower() != ".json" and not raw.lstrip().startswith("{"):
        return join_segments([(line, None, None) for line in raw.splitlines()], language=language)
    try:
        check_json_depth(raw)
        return _from_json(json.loads(raw), path, language)
    except (ValueError, RecursionError) as error:
        raise _unsound(path, str(error)) from error


def _from_json(found: Any, path: Path, language: str | None) -> NoteTranscript:
    segments = found.get("segments") if isinstance(found, dict) else None
    if not isinstance(segments, list):
        raise _unsound(path, "it is no object with a list `segments`")
    parts: list[tuple[str, float | None, float | None]] = []
    for index, segment in enumerate(segments):
        said = segment.get("text") if isinstance(segment, dict) else None
        if not isinstance(said, str):
            raise _unsound(path, f"segment {index} has no `text`")
        start_s, end_s = (_seconds(segment.get(name)) for name in ("start_s", "end_s"))
        if start_s is not None and end_s is not None and end_s < start_s:
            raise _unsound(path, f"segment {index} ends at {end_s} s, before it starts at {start_s} s")
        parts.append((said, start_s, end_s))
    said_language = found.get("language")
    known = _known(said_language) if isinstance(said_language, str) else None
    return join_segments(parts, language=language or known, duration_s=_seconds(found.get("duration_s")))


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MOST_SECONDS:  # NaN is in no range, and what is in it is a float
        raise ValueError(f"{str(value)[:40]} is no time in seconds")
    return float(value)


def _unsound(path: Path, why: str) -> FormatError:
    return FormatError(f"{path.name} is no transcript", why=why[:200], fix=_FIX)
