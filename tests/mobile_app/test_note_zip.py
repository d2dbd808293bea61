from __future__ import annotations

import errno
import json
import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mobile_app.audio_segments import read_blocks
from mobile_app.note_zip import export_notes, import_notes
from mobile_app.store import NoteState, NoteStore
from tests.mobile_app.test_store import TRANSCRIPT, recorded
from toolkit.errors import BudgetError, FormatError, UsageError


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    with NoteStore(tmp_path / "old") as store:
        store.keep_transcript(recorded(store), TRANSCRIPT)
        recorded(store, 0.5)
        assert export_notes(store, tmp_path / "notes.zip") == 2
    return tmp_path / "notes.zip"


def test_notes_are_the_same_on_another_device(exported: Path, tmp_path: Path) -> None:
    with NoteStore(tmp_path / "old") as old, NoteStore(tmp_path / "new") as new:
        assert import_notes(new, exported) == 2
        assert new.notes() == old.notes()
        for note in old.notes():
            assert list(read_blocks(new.audio(note.id))) == list(read_blocks(old.audio(note.id)))
        assert import_notes(new, exported) == 0, "what is there is left alone"
        new.delete(old.notes()[0].id)
        assert import_notes(new, exported) == 1


def test_an_export_may_hold_some_notes(tmp_path: Path) -> None:
    with NoteStore(tmp_path / "old") as store, NoteStore(tmp_path / "new") as new:
        first, _ = recorded(store), recorded(store)
        assert export_notes(store, tmp_path / "one.zip", [first]) == 1
        assert import_notes(new, tmp_path / "one.zip") == 1
        with pytest.raises(UsageError, match="there is no note"):
            export_notes(store, tmp_path / "none.zip", ["0" * 32])
        assert not (tmp_path / "none.zip").exists()


def changed(exported: Path, path: Path, change: Callable[[dict[str, Any]], None], extra: dict[str, bytes] | None = None) -> Path:
    """The export with another index, and more files."""
    with zipfile.ZipFile(exported) as old, zipfile.ZipFile(path, "w") as new:
        index = json.loads(old.read("notes.json"))
        change(index)
        for name in old.namelist():
            new.writestr(name, json.dumps(index) if name == "notes.json" else old.read(name))
        for name, content in (extra or {}).items():
            new.writestr(name, content)
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.pop("notes"),
        lambda index: index.update(schema_version=2),
        lambda index: index["notes"][0].update(id="../../etc"),
        lambda index: index["notes"][0].update(id=3),
        lambda index: index["notes"][0].update(state="flying"),
        lambda index: index["notes"][0].update(state="deleted"),
        lambda index: index["notes"][0].update(created_at="today"),
        lambda index: index["notes"][0].update(created_at=10**400),
        lambda index: index["notes"][0].update(created_at=10**30),
        lambda index: index["notes"][0].update(created_at=math.nan),
        lambda index: index["notes"][0].update(title="x" * 5000),
        lambda index: index["notes"][0].update(language=[]),
        lambda index: index["notes"][0].update(state=[]),
        lambda index: index["notes"][0].update(transcript=[1]),
        lambda index: index["notes"][0].update(more=1),
        lambda index: index["notes"][0].pop("title"),
        lambda index: index.update(notes=[3]),
    ],
)
def test_an_index_that_is_not_ours_is_refused_and_adds_nothing(
    exported: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    path = changed(exported, tmp_path / "changed.zip", change)
    with NoteStore(tmp_path / "new") as store:
        with pytest.raises(FormatError, match="no export of notes"):
            import_notes(store, path)
        assert store.notes() == []
    assert list((tmp_path / "new" / "audio").iterdir()) == []


def test_a_name_in_the_zip_leads_nowhere_else(exported: Path, tmp_path: Path) -> None:
    extra = {"../outside.pcm": b"x", "audio/../../outside.pcm": b"x", "/tmp/outside.pcm": b"x", "audio/" + "f" * 32 + "/000000.pcm": b"x"}
    path = changed(exported, tmp_path / "changed.zip", lambda index: None, extra)
    with NoteStore(tmp_path / "new") as store:
        assert import_notes(store, path) == 2
    assert not list(tmp_path.rglob("outside.pcm"))
    assert len(list((tmp_path / "new" / "audio").iterdir())) == 2


def test_a_damaged_zip_is_refused(exported: Path, tmp_path: Path) -> None:
    raw = bytearray(exported.read_bytes())
    (tmp_path / "half.zip").write_bytes(raw[: len(raw) // 2])
    raw[200] ^= 0xFF  # a byte of sound: its checksum no longer holds
    (tmp_path / "flipped.zip").write_bytes(raw)
    with NoteStore(tmp_path / "new") as store:
        for name in ("half.zip", "flipped.zip"):
            with pytest.raises(FormatError, match="no export of notes"):
                import_notes(store, tmp_path / name)
        with pytest.raises(UsageError, match="there is no file"):
            import_notes(store, tmp_path / "none.zip")
        with pytest.raises(UsageError, match="it is a folder"):
            import_notes(store, tmp_path)
        assert not [path for path in (tmp_path / "new" / "audio").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_index_is_refused_however_it_is_packed(exported: Path, tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(exported) as old, zipfile.ZipFile(tmp_path / "packed.zip", "w", method) as new:
        new.writestr("notes.json", old.read("notes.json"))
    raw = bytearray((tmp_path / "packed.zip").read_bytes())
    raw[60:100] = bytes(40)
    (tmp_path / "packed.zip").write_bytes(raw)
    with NoteStore(tmp_path / "new") as store, pytest.raises(FormatError, match="no export of notes"):
        import_notes(store, tmp_path / "packed.zip")


@pytest.mark.parametrize(("field", "value"), [(6, 255), (8, 1), (10, 99)], ids=["version", "encrypted", "compression"])
def test_a_zip_of_a_kind_that_cannot_be_unpacked_is_refused(exported: Path, tmp_path: Path, field: int, value: int) -> None:
    raw = bytearray(exported.read_bytes())
    at = raw.rindex(b"PK\x01\x02")  # the entry of notes.json, the last one
    raw[at + field] = value
    (tmp_path / "odd.zip").write_bytes(raw)
    with NoteStore(tmp_path / "new") as store, pytest.raises(FormatError, match="no export of notes"):
        import_notes(store, tmp_path / "odd.zip")


def test_a_full_disk_ends_an_export_and_an_import_as_it_ends_a_report(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with NoteStore(tmp_path / "old") as old, NoteStore(tmp_path / "new") as new:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(BudgetError, match="cannot be written"):
            export_notes(old, tmp_path / "full.zip")
        with pytest.raises(BudgetError, match="cannot be imported"):
            import_notes(new, exported)
    assert not [path for path in tmp_path.iterdir() if "full.zip" in path.name]


def test_a_note_that_is_being_recorded_is_exported_as_far_as_it_is(tmp_path: Path) -> None:
    with NoteStore(tmp_path / "old") as store, NoteStore(tmp_path / "new") as new:
        note_id, writer = store.record()
        writer.write(b"\x01\x01" * 1000)
        export_notes(store, tmp_path / "now.zip")
        writer.close()
        import_notes(new, tmp_path / "now.zip")
        assert new.note(note_id).state is NoteState.RECORDED
        assert b"".join(read_blocks(new.audio(note_id))) == b"\x01\x01" * 1000
