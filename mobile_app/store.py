"""The notes of a device: one SQLite file and their sound beside it. What was recorded is lost only when the user deletes it.

FOLDER/notes.db          notes, transcripts, reports
FOLDER/audio/NOTE_ID/    sound, see `audio_segments`
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from mobile_app.audio_segments import SegmentWriter, recorded_seconds
from toolkit.errors import FormatError, ToolkitError, UsageError

SCHEMA_VERSION = 1
# A note whose work has ended the process so often waits for the user: a crash at every start would take the app with it.
MOST_ATTEMPTS = 3
IMPORTING = ".importing."
_ID = re.compile("[0-9a-f]{32}")
_TABLE = """
CREATE TABLE IF NOT EXISTS notes (
    id TEXT PRIMARY KEY, created_at REAL NOT NULL, title TEXT NOT NULL, language TEXT, template TEXT NOT NULL,
    state TEXT NOT NULL, n_attempts INTEGER NOT NULL DEFAULT 0, transcript TEXT, report TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS notes_by_state ON notes (state, created_at);
"""
_COLUMNS = "id, created_at, title, language, template, state, n_attempts, transcript, report"


class NoteState(StrEnum):
    """How far a note has come."""

    RECORDING = "recording"
    RECORDED = "recorded"
    TRANSCRIBED = "transcribed"
    REPORTED = "reported"
    DELETED = "deleted"


@dataclass(frozen=True)
class StoredNote:
    """One note. `transcript` and `report` are the objects of `transcript.json` and `report.json`."""

    id: str
    created_at: float
    title: str
    language: str | None
    template: str
    state: NoteState
    n_attempts: int
    transcript: Mapping[str, Any] | None
    report: Mapping[str, Any] | None


class NoteStore:
    """Opened once by an app; its methods may be called from any thread.

    Args:
        folder: Where everything is kept; made if it is missing.

    Raises:
        FormatError: The file is no store, or one of a newer version.
        ToolkitError: The folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        try:
            (folder / "audio").mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(folder / "notes.db", isolation_level=None, check_same_thread=False, timeout=10.0)
            self._prepare()
        except (OSError, sqlite3.OperationalError) as error:
            fix = "check the folder and the free space"
            raise ToolkitError(f"the notes in {folder} cannot be opened", why=str(error), fix=fix) from error
        except sqlite3.DatabaseError as error:
            fix = "move it aside and open the app again: it makes notes of the recordings in audio/"
            raise FormatError(f"{folder / 'notes.db'} is no store of notes", why=str(error), fix=fix) from error

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")  # what a method returned from survives the battery's end
        self._db.execute("PRAGMA secure_delete = ON")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            self._db.close()
            why = f"its version is {version}, this app reads {SCHEMA_VERSION}"
            raise FormatError(f"{self.folder / 'notes.db'} was written by a newer app", why=why, fix="update the app")
        self._db.executescript(_TABLE)
        self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def recover(self) -> list[str]:
        """Once, when the app starts: recordings that a kill ended are whole notes, and begun deletions are finished.

        Sound without a note becomes one: a store that was lost or moved aside costs titles and reports, never a recording.

        Returns:
            The ids of the notes that were ended by a kill or had lost their store.
        """
        for note in self._select("state = ?", NoteState.DELETED):
            self._remove(note.id)
        rows = self._all("SELECT id FROM notes WHERE state = ?", NoteState.RECORDING)
        with self._changes():
            self._db.execute("UPDATE notes SET state = ? WHERE state = ?", [NoteState.RECORDED, NoteState.RECORDING])
        return [*(note_id for (note_id,) in rows), *self._adopt()]

    def _adopt(self) -> list[str]:
        known = {note_id for (note_id,) in self._all("SELECT id FROM notes")}
        adopted = []
        for place in sorted((self.folder / "audio").iterdir()):
            if place.name.startswith(IMPORTING):  # was ended by a kill; the zip still has it
                shutil.rmtree(place, ignore_errors=True)
            elif place.name not in known and is_note_id(place.name) and recorded_seconds(place):
                made_at = place.stat().st_mtime
                self.insert(StoredNote(place.name, made_at, "", None, "inspection", NoteState.RECORDED, 0, None, None))
                adopted.append(place.name)
        return adopted

    def record(self, *, template: str = "inspection", language: str | None = None, title: str = "") -> tuple[str, SegmentWriter]:
        """Begin a note: its id, and where its sound goes. The note is in the store before the first sample is."""
        note_id = uuid.uuid4().hex
        with self._changes():
            self._db.execute(
                "INSERT INTO notes (id, created_at, title, language, template, state) VALUES (?, ?, ?, ?, ?, ?)",
                [note_id, time.time(), title, language, template, NoteState.RECORDING],
            )
        return note_id, SegmentWriter(self.audio(note_id))

    def audio(self, note_id: str) -> Path:
        """The folder of a note's sound."""
        return self.folder / "audio" / note_id

    def seconds(self, note_id: str) -> float:
        """How long a note is."""
        return recorded_seconds(self.audio(note_id))

    def finish_recording(self, note_id: str) -> None:
        """The user stopped: the note waits for its transcript."""
        self._move(note_id, "state = ?", [NoteState.RECORDED])

    def begin_work(self, note_id: str) -> None:
        """Count an attempt, before the work that may end the process."""
        self._move(note_id, "n_attempts = n_attempts + 1", [])

    def keep_transcript(self, note_id: str, transcript: Mapping[str, Any]) -> None:
        """The transcript is there; the next piece of work has its own attempts."""
        values = [NoteState.TRANSCRIBED, _json(transcript), transcript.get("language")]
        self._move(note_id, "state = ?, transcript = ?, language = coalesce(language, ?), n_attempts = 0", values)

    def keep_report(self, note_id: str, report: Mapping[str, Any]) -> None:
        """The report is there: nothing is left to do."""
        title = report.get("title")
        said = title.get("text", "") if isinstance(title, Mapping) else ""
        changes = "state = ?, report = ?, title = CASE title WHEN '' THEN ? ELSE title END"
        self._move(note_id, changes, [NoteState.REPORTED, _json(report), said])

    def try_again(self, note_id: str) -> None:
        """The user asks for it: work that failed too often is taken up once more."""
        self._move(note_id, "n_attempts = 0", [])

    def pending(self) -> list[StoredNote]:
        """Notes with work left, oldest first; those that failed too often wait for the user."""
        wanted = "state IN (?, ?) AND n_attempts < ?"
        return self._select(wanted, NoteState.RECORDED, NoteState.TRANSCRIBED, MOST_ATTEMPTS)

    def notes(self, containing: str = "") -> list[StoredNote]:
        """All notes, or those whose title or transcript contains a text; oldest first."""
        pattern = "%" + "".join(f"\\{char}" if char in "\\%_" else char for char in containing) + "%"
        said = "coalesce(json_extract(transcript, '$.text'), '')"
        wanted = f"state != ? AND (title LIKE ? ESCAPE '\\' OR {said} LIKE ? ESCAPE '\\')"
        return self._select(wanted, NoteState.DELETED, pattern, pattern)

    def note(self, note_id: str) -> StoredNote:
        """One note.

        Raises:
            UsageError: There is none of this id.
        """
        found = self._select("id = ? AND state != ?", note_id, NoteState.DELETED)
        if not found:
            raise UsageError(f"there is no note {note_id}", why="it was deleted, or never there", fix="choose one of the list")
        return found[0]

    def delete(self, note_id: str) -> None:
        """Delete a note with its sound, transcript and report. Ended by a kill, `recover` finishes it."""
        self._move(note_id, "state = ?, title = '', transcript = NULL, report = NULL", [NoteState.DELETED])
        self._remove(note_id)

    def _remove(self, note_id: str) -> None:
        place = self.audio(note_id)
        shutil.rmtree(place, ignore_errors=True)
        if place.exists():
            raise ToolkitError("the note's sound cannot be deleted", why=f"{place} is still there", fix="check its permissions")
        with self._changes():
            self._db.execute("DELETE FROM notes WHERE id = ?", [note_id])
        with self._lock:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log holds what was said until it is cut off

    def insert(self, note: StoredNote) -> bool:
        """Add a note that came from elsewhere; False if it is there already."""
        values = [note.id, note.created_at, note.title, note.language, note.template, note.state, note.n_attempts]
        values += [_json(part) if part is not None else None for part in (note.transcript, note.report)]
        with self._changes():
            return self._db.execute(f"INSERT OR IGNORE INTO notes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values).rowcount == 1

    def close(self) -> None:
        """May be called twice."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> NoteStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _move(self, note_id: str, changes: str, values: list[Any]) -> None:
        with self._changes():
            done = self._db.execute(f"UPDATE notes SET {changes} WHERE id = ? AND state != ?", [*values, note_id, NoteState.DELETED])
            if done.rowcount != 1:
                raise UsageError(f"there is no note {note_id}", why="it was deleted, or never there", fix="choose one of the list")

    @contextmanager
    def _changes(self) -> Iterator[None]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except BaseException as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    fix = "free some space and try again; the recordings are untouched"
                    raise ToolkitError("the store of notes cannot be changed", why=str(error), fix=fix) from error
                raise

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def _select(self, wanted: str, *values: object) -> list[StoredNote]:
        rows = self._all(f"SELECT {_COLUMNS} FROM notes WHERE {wanted} ORDER BY created_at, id", *values)
        return [_note(row) for row in rows]


def is_note_id(name: str) -> bool:
    """Whether a name is one of ours: 32 hexadecimal digits, so it can be no path either."""
    return bool(_ID.fullmatch(name))


def _note(row: tuple[Any, ...]) -> StoredNote:
    note_id, created_at, title, language, template, state, n_attempts, transcript, report = row
    return StoredNote(note_id, created_at, title, language, template, NoteState(state), n_attempts, _read(transcript), _read(report))


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False)


def _read(text: str | None) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = json.loads(text) if text is not None else None
    return found
