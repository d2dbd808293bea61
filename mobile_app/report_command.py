"""`voice-notes report`: a recording or a transcript in, a folder with the report out."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from mobile_app.messages import refusal, result_words
from mobile_app.report.build import build_report
from mobile_app.report.document import Note, Source
from mobile_app.report.labels import clock
from mobile_app.report.publish import another_report, check_folder, publish, published, report_files
from mobile_app.report.template import load_template
from mobile_app.transcript import NoteTranscript, read_transcript, speakable
from toolkit.cache import sha256_file
from toolkit.cli.output import printable
from toolkit.errors import FormatError, UsageError

if TYPE_CHECKING:
    from toolkit.speech.transcription import Segment

MAX_CHARACTERS = 400_000  # four hours of fast speech


def run(args: argparse.Namespace, *, user: str) -> int:
    """Run the command.

    Args:
        args: Its options.
        user: Language of messages.
    """
    if args.note is None and args.transcript is None:
        raise UsageError("no note was given", why="a report is made of a recording", fix="voice-notes report NOTE.wav")
    if args.out == "":  # to the system that is the current folder, to no user
        raise UsageError("no folder was given to --out", why="its value is empty", fix="give a folder, like --out report, or leave it out")
    template = load_template(args.template)
    recorded_on = _day(args.date)
    given = Path(args.note or args.transcript)
    folder = Path(args.out) if args.out is not None else Path(f"{given.stem}-report")
    with _made(folder):
        transcript, source = _from_transcript(args, given) if args.transcript is not None else _from_sound(args, given, folder, user)
        if not any(char.isalnum() for char in transcript.text):
            raise refusal(FormatError, "empty_transcript", user, name=source.name)
        if (n_characters := len(transcript.text)) > MAX_CHARACTERS:
            raise refusal(UsageError, "too_long", user, name=source.name, n_characters=n_characters, most=MAX_CHARACTERS)
        report = build_report(transcript, template, recorded_on=recorded_on)
        note = Note(report, transcript, template, source, recorded_on)
        is_new = publish(folder, note, force=args.force)
    if args.json:
        sys.stdout.write(report_files(note)["report.json"].decode("utf-8"))
    _say(note, folder, user, is_new=is_new)
    return 0


def _day(text: str | None) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--date {text} is no day", why=str(error), fix="write it like --date 2026-11-30") from error


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """The folder for the report, proven before any work; if there is no report in the end, an empty folder goes again."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    check_folder(folder)
    try:
        yield
    except BaseException:
        for place in missing:
            with contextlib.suppress(OSError):
                place.rmdir()
        raise


def _from_transcript(args: argparse.Namespace, given: Path) -> tuple[NoteTranscript, Source]:
    path = Path(args.transcript)
    transcript = read_transcript(path, language=args.language)
    return transcript, Source(speakable(given.name if args.note else path.name), sha256_file(path))


def _from_sound(args: argparse.Namespace, path: Path, folder: Path, user: str) -> tuple[NoteTranscript, Source]:
    from mobile_app.recording import open_recording
    from mobile_app.transcriber import find_bundle, transcribe_recording

    recording = open_recording(path, user)
    place = find_bundle(args.bundle, args.language or user, user=user)
    source = Source(speakable(path.name), sha256_file(path), place.name, recording.is_truncated)
    if not args.force and (known := _known_transcript(folder, source, args.language)) is not None:
        return known, source
    return transcribe_recording(recording, place, name=path.name, language=args.language, user=user, on_segment=_show), source


def _known_transcript(folder: Path, source: Source, language: str | None) -> NoteTranscript | None:
    """The transcript of this very recording by this model, if the folder's report has it: minutes of work not done twice.

    Raises:
        UsageError: The folder's report is of another recording: said before the work, not after.
    """
    document = published(folder)
    if document is None:
        return None
    made_from = document.get("source")
    if not isinstance(made_from, dict) or made_from.get("sha256") != source.sha256:
        raise another_report(folder, "it is of another recording")
    is_same = made_from.get("speech_model") == source.speech_model and language in (None, document.get("language"))
    return read_transcript(folder / "transcript.json", language=language) if is_same else None


def _show(segment: Segment) -> None:
    _tell(f"{clock(segment.start_s)} - {clock(segment.end_s)}  {printable(segment.text.strip())}")


def _tell(line: str) -> None:
    """A line on stderr for whoever watches. No report depends on it: stderr may be closed, or its reader may have left."""
    if sys.stderr is None:  # print would take stdout instead, which is for JSON
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # so that nothing is left to flush when Python ends


def _say(note: Note, folder: Path, user: str, *, is_new: bool) -> None:
    report, words = note.report, result_words(user)
    fields = {
        "findings": report.findings,
        "measurements": report.measurements,
        "actions": report.actions,
        "questions": report.questions,
        "not_placed": report.not_placed,
    }
    counts = ", ".join(f"{words[name]} {len(found)}" for name, found in fields.items())
    _tell(words["written" if is_new else "there"].format(folder=folder, counts=counts))
    if note.source.is_truncated:
        _tell(words["truncated"])
