from __future__ import annotations

import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from mobile_app.audio_segments import BYTES_PER_S
from mobile_app.store import MOST_ATTEMPTS, NoteState, NoteStore
from toolkit.errors import FormatError, ToolkitError, UsageError

SECRET = "the-password-is-swordfish"
TRANSCRIPT = {"language": "en", "text": f"Pump three leaks. {SECRET}", "segments": []}


def recorded(store: NoteStore, seconds: float = 1.0) -> str:
    note_id, writer = store.record()
    with writer:
        writer.write(b"\x01\x02" * round(seconds * BYTES_PER_S / 2))
    store.finish_recording(note_id)
    return note_id


def test_a_note_goes_from_recording_to_report(tmp_path: Path) -> None:
    with NoteStore(tmp_path) as store:
        note_id = recorded(store)
        assert [note.id for note in store.pending()] == [note_id]
        store.keep_transcript(note_id, TRANSCRIPT)
        store.keep_report(note_id, {"title": {"text": "Pump three"}})
        assert store.pending() == []
    with NoteStore(tmp_path) as store:
        note = store.note(note_id)
        assert (note.state, note.title, note.language, note.transcript) == (NoteState.REPORTED, "Pump three", "en", TRANSCRIPT)
        assert store.seconds(note_id) == 1.0


def test_work_that_ends_the_process_again_and_again_waits_for_the_user(tmp_path: Path) -> None:
    with NoteStore(tmp_path) as store:
        note_id = recorded(store)
        for _ in range(MOST_ATTEMPTS):
            assert [note.id for note in store.pending()] == [note_id]
            store.begin_work(note_id)
        assert store.pending() == []
        assert store.note(note_id).state is NoteState.RECORDED, "the note is still there"
        store.try_again(note_id)
        assert [note.id for note in store.pending()] == [note_id]


def test_a_transcript_gives_the_report_its_own_attempts(tmp_path: Path) -> None:
    with NoteStore(tmp_path) as store:
        note_id = recorded(store)
        store.begin_work(note_id)
        store.keep_transcript(note_id, TRANSCRIPT)
        assert store.note(note_id).n_attempts == 0


def holds_secret(folder: Path) -> bool:
    return any(SECRET.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_deleted_note_leaves_no_byte_behind(tmp_path: Path) -> None:
    with NoteStore(tmp_path) as store:
        note_id, kept = recorded(store), recorded(store)
        store.keep_transcript(note_id, {**TRANSCRIPT, "text": "Pump three leaks. " * 1000 + SECRET})  # pages of its own
    assert SECRET.encode() in (tmp_path / "notes.db").read_bytes(), (
        "closing moves the log into the file: else this looks in the wrong place"
    )
    with NoteStore(tmp_path) as store:
        store.delete(note_id)
        assert [note.id for note in store.notes()] == [kept]
        assert not holds_secret(tmp_path)
        assert [path.name for path in (tmp_path / "audio").iterdir()] == [kept]
        with pytest.raises(UsageError, match="there is no note"):
            store.note(note_id)
        with pytest.raises(UsageError, match="there is no note"):
            store.keep_transcript(note_id, TRANSCRIPT)


def test_a_note_that_never_left_the_log_leaves_no_byte_behind_either(tmp_path: Path) -> None:
    with NoteStore(tmp_path) as store:
        note_id = recorded(store)
        store.keep_transcript(note_id, TRANSCRIPT)
        assert holds_secret(tmp_path)
        store.delete(note_id)
        assert not holds_secret(tmp_path)


def test_a_deletion_that_was_ended_half_way_is_finished_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = NoteStore(tmp_path)
    note_id = recorded(store)
    monkeypatch.setattr(shutil, "rmtree", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.delete(note_id)
    monkeypatch.undo()
    store.close()
    with NoteStore(tmp_path) as again:
        assert again.notes() == []
        again.recover()
        assert list((tmp_path / "audio").iterdir()) == []


def test_search_looks_at_what_was_said_and_takes_no_pattern(tmp_path: Path) -> None:
    with NoteStore(tmp_path) as store:
        note_id = recorded(store)
        other = recorded(store)
        store.keep_transcript(note_id, TRANSCRIPT)
        store.keep_transcript(other, {"language": "ja", "text": "油漏れ 100%", "segments": []})
        wanted = {"leaks": [note_id], "油漏れ": [other], "0%": [other], "l%s": [], "segments": [], "'; DROP TABLE notes; --": []}
        assert {text: [note.id for note in store.notes(text)] for text in wanted} == wanted


def test_a_lost_store_costs_titles_but_no_recording(tmp_path: Path) -> None:
    with NoteStore(tmp_path) as store:
        note_id = recorded(store)
    for path in tmp_path.glob("notes.db*"):
        path.unlink()
    with NoteStore(tmp_path) as store:
        assert store.recover() == [note_id]
        assert [(note.id, note.state) for note in store.pending()] == [(note_id, NoteState.RECORDED)]
        assert store.recover() == []


def test_a_damaged_store_and_a_newer_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "notes.db").write_bytes(b"no database at all " * 100)
    with pytest.raises(FormatError, match="no store of notes"):
        NoteStore(tmp_path / "one")
    NoteStore(tmp_path / "two").close()
    with sqlite3.connect(tmp_path / "two" / "notes.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(FormatError, match="newer app"):
        NoteStore(tmp_path / "two")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(ToolkitError, match="cannot be opened"):
        NoteStore(tmp_path / "notes")


def test_threads_may_use_one_store_together(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    with NoteStore(tmp_path) as store:

        def work() -> None:
            try:
                for _ in range(5):
                    note_id = recorded(store, 0.1)
                    store.keep_transcript(note_id, TRANSCRIPT)
                    store.notes("leaks")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(store.notes("leaks")) == 20
