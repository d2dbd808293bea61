"""All notes of a store, or some, as one zip: to keep elsewhere, or to bring onto another device.

notes.json               {"schema_version", "notes": [one object a note]}
audio/NOTE_ID/*.pcm      sound, as `audio_segments` keeps it
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mobile_app.audio_segments import segment_files
from mobile_app.messages import no_file_why
from mobile_app.store import IMPORTING, NoteState, NoteStore, StoredNote, is_note_id
from mobile_app.whole_file import sync_file, whole_file
from toolkit.cache import FULL_ERRNOS
from toolkit.errors import BudgetError, FormatError, ToolkitError, UsageError
from toolkit.json_depth import check_json_depth

SCHEMA_VERSION = 1
INDEX = "notes.json"
MAX_INDEX_BYTES, MAX_NOTES, MAX_TEXT = 256 * 2**20, 100_000, 1000
_LATEST = 1e11  # the year 5138; NaN is in no range
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What zipfile raises for a zip that is no export of ours. KeyError: an entry is not there. RuntimeError: it is encrypted, and as
# NotImplementedError: of a newer version or kind than Python unpacks. ValueError is also ours, for what is in it.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, ValueError)
_FIX = "give a zip that this app exported"


def export_notes(store: NoteStore, path: Path, note_ids: Sequence[str] | None = None) -> int:
    """Write notes into a zip, moved into place whole; returns how many. A note that is still being recorded goes as far as it is.

    Raises:
        UsageError: A note is not there.
        BudgetError: The disk is full.
        ToolkitError: The zip cannot be written.
    """
    notes = store.notes() if note_ids is None else [store.note(note_id) for note_id in note_ids]
    try:
        with whole_file(path) as work, zipfile.ZipFile(work, "w", zipfile.ZIP_STORED) as archive:
            for note in notes:
                for file in segment_files(store.audio(note.id)):
                    archive.write(file, f"audio/{note.id}/{file.name}")
            index = {"schema_version": SCHEMA_VERSION, "notes": [asdict(note) for note in notes]}
            archive.writestr(INDEX, json.dumps(index, ensure_ascii=False, allow_nan=False), zipfile.ZIP_DEFLATED)
    except OSError as error:
        fix = "free some space, or choose another place"
        raise _kind(error)(f"{path} cannot be written", why=error.strerror or str(error), fix=fix) from error
    return len(notes)


def import_notes(store: NoteStore, path: Path) -> int:
    """Add the notes of a zip that are not there yet; returns how many. Notes that are there are left as they are.

    Raises:
        UsageError: There is no such file.
        FormatError: It is no export, or damaged; notes before the damage stay added.
        BudgetError: The disk is full.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path}", why=no_file_why(path), fix=_FIX)
    try:
        with zipfile.ZipFile(path) as archive:
            if odd := next((entry for entry in archive.infolist() if entry.compress_type not in _METHODS), None):
                raise ValueError(f"{odd.filename} is packed by method {odd.compress_type}, which no export is")
            notes = _index(archive)
            known = {note.id for note in store.notes()}
            return sum(_import_one(store, archive, note) for note in notes if note.id not in known)
    except _DAMAGED as error:
        raise FormatError(f"{path.name} is no export of notes", why=str(error)[:200], fix=_FIX) from error
    except OSError as error:
        fix = "free some space and try again"
        raise _kind(error)(f"{path.name} cannot be imported", why=error.strerror or str(error), fix=fix) from error


def _kind(error: OSError) -> type[ToolkitError]:
    return BudgetError if error.errno in FULL_ERRNOS else ToolkitError


def _index(archive: zipfile.ZipFile) -> list[StoredNote]:
    information = archive.getinfo(INDEX)
    if information.file_size > MAX_INDEX_BYTES:
        raise ValueError(f"{INDEX} has {information.file_size} bytes, at most {MAX_INDEX_BYTES} are taken")
    with archive.open(information) as stream:
        raw = stream.read(MAX_INDEX_BYTES + 1).decode("utf-8")
    check_json_depth(raw)
    table = json.loads(raw)
    notes = table.get("notes") if isinstance(table, dict) else None
    if not isinstance(notes, list) or len(notes) > MAX_NOTES:
        raise ValueError(f"{INDEX} has no list `notes`")
    if table.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"its version is {table.get('schema_version')!r}, this app reads {SCHEMA_VERSION}")
    return [_note(note) for note in notes]


def _note(table: Any) -> StoredNote:
    if not isinstance(table, dict) or set(table) != set(StoredNote.__dataclass_fields__):
        raise ValueError("a note has other fields than ours")
    note = StoredNote(**{**table, "state": NoteState(table["state"]), "n_attempts": 0})
    texts = (note.title, note.template, "" if note.language is None else note.language)
    if not (isinstance(note.id, str) and is_note_id(note.id)) or not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in texts):
        raise ValueError("a note's id or title is not one of ours")
    if not isinstance(note.created_at, (int, float)) or not 0 <= note.created_at <= _LATEST or note.state is NoteState.DELETED:
        raise ValueError("a note's time or state is not one of ours")
    if not all(part is None or isinstance(part, dict) for part in (note.transcript, note.report)):
        raise ValueError("a note's transcript or report is no object")
    return note


def _import_one(store: NoteStore, archive: zipfile.ZipFile, note: StoredNote) -> bool:
    """Sound first, under another name; then it gets its name, then the note is in the store."""
    work = store.audio(f"{IMPORTING}{note.id}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        for information in archive.infolist():
            folder, _, name = information.filename.rpartition("/")
            if folder == f"audio/{note.id}" and name.endswith(".pcm") and name.removesuffix(".pcm").isascii() and name[:-4].isdigit():
                with archive.open(information) as source, (work / name).open("xb") as stream:
                    shutil.copyfileobj(source, stream)
                sync_file(work / name)
        place = store.audio(note.id)
        if place.exists():
            raise ValueError(f"there is sound of note {note.id} without a note; open the app again, then import")
        os.replace(work, place)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    state = NoteState.RECORDED if note.state is NoteState.RECORDING else note.state
    return store.insert(StoredNote(**{**vars(note), "state": state}))
