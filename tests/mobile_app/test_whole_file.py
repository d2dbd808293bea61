from __future__ import annotations

import os
from pathlib import Path

import pytest

from mobile_app.audio_segments import SegmentWriter, write_wav
from mobile_app.whole_file import sync_folder, whole_file


def test_a_file_appears_at_the_end_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "note"
    path.write_text("old")
    with whole_file(path) as work:
        work.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "note"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as work:
        work.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_wav_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SegmentWriter(tmp_path / "sound") as writer:
        writer.write(b"\x01\x01" * 100)
    done: list[str] = []
    sync, move = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append("sync"), sync(file)))
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append("move"), move(old, new)))
    write_wav(tmp_path / "sound", tmp_path / "note.wav")
    assert done[:2] == ["sync", "move"]


def test_a_folder_that_the_system_does_not_sync_is_passed_over(tmp_path: Path) -> None:
    sync_folder(tmp_path / "none")
