from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mobile_app.audio_segments import BYTES_PER_S, SEGMENT_S, SegmentWriter, read_blocks, recorded_seconds, segment_files, write_wav
from mobile_app.recording import open_recording
from mobile_app.store import NoteState, NoteStore
from toolkit.errors import BudgetError, ToolkitError, UsageError

ROOT = Path(__file__).parents[2]
# Records ten times as fast as a microphone, and says after each tenth of a second how much it has handed over.
_RECORDER = """
import sys, time
from pathlib import Path
from mobile_app.audio_segments import BYTES_PER_S
from mobile_app.store import NoteStore
store = NoteStore(Path(sys.argv[1]))
note_id, writer = store.record()
n_blocks = 0
while True:
    writer.write(n_blocks.to_bytes(4, "little") * (BYTES_PER_S // 40))
    n_blocks += 1
    print(n_blocks, flush=True)
    time.sleep(0.01)
"""


def test_sound_comes_back_as_it_was_given_over_many_files(tmp_path: Path) -> None:
    sound = random.Random(1).randbytes(BYTES_PER_S * 2)
    with SegmentWriter(tmp_path) as writer:
        for _ in range(SEGMENT_S):
            writer.write(sound)
    assert len(segment_files(tmp_path)) == 3  # two full ones, and one for what would have come next
    assert b"".join(read_blocks(tmp_path)) == sound * SEGMENT_S
    assert recorded_seconds(tmp_path) == 2 * SEGMENT_S


def test_a_stopped_recording_goes_on_in_a_new_file(tmp_path: Path) -> None:
    for block in (b"\x01\x01", b"\x02\x02"):
        with SegmentWriter(tmp_path) as writer:
            writer.write(block)
    assert b"".join(read_blocks(tmp_path)) == b"\x01\x01\x02\x02"


def test_half_a_sample_at_the_end_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "000000.pcm").write_bytes(b"\x01\x01\x02")
    (tmp_path / "000001.pcm").write_bytes(b"\x03\x03")
    assert b"".join(read_blocks(tmp_path)) == b"\x01\x01\x03\x03"


def test_the_wav_file_holds_the_recording(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path / "note") as writer:
        writer.write(b"\x00\x20" * BYTES_PER_S)
    assert write_wav(tmp_path / "note", tmp_path / "note.wav") == 2.0
    assert round(open_recording(tmp_path / "note.wav", "en").seconds, 3) == 2.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["note", "note.wav"]


def test_sound_after_the_end_is_refused(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(UsageError, match="closed"):
        writer.write(b"\x01\x01")


def test_a_full_disk_ends_the_recording_and_says_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SegmentWriter(tmp_path)
    writer.write(b"\x01\x01" * BYTES_PER_S)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(BudgetError) as raised:
        writer.write(b"\x02\x02")
    monkeypatch.undo()
    assert "2.0 s of sound are kept" in raised.value.why
    writer.close()
    assert recorded_seconds(tmp_path) == 2.0


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    with pytest.raises(ToolkitError, match="cannot be written"):
        SegmentWriter(tmp_path / "note")


def test_what_was_written_is_forced_to_the_disk_twice_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), real(file))[1])
    with SegmentWriter(tmp_path) as writer:
        before = len(synced)
        for _ in range(40):
            writer.write(b"\x01\x01" * (BYTES_PER_S // 20))  # a tenth of a second
        assert len(synced) - before >= 8


def test_killed_at_any_moment_no_note_and_less_than_two_seconds_of_sound_are_lost(tmp_path: Path) -> None:
    draw = random.Random(20261130)
    for round_index in range(10):
        process = subprocess.Popen([sys.executable, "-c", _RECORDER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None and process.stdout.readline()
        time.sleep(draw.random() * 0.3)
        process.kill()
        handed_over = len(process.stdout.read().splitlines()) + 1
        process.wait()
        process.stdout.close()
        with NoteStore(tmp_path) as store:
            (note_id,) = store.recover()
            assert len(store.notes()) == round_index + 1
            assert store.note(note_id).state is NoteState.RECORDED
            assert store.seconds(note_id) > handed_over / 10 - 2.0
            sound = b"".join(read_blocks(store.audio(note_id)))
        block = BYTES_PER_S // 10
        starts = [int.from_bytes(sound[at : at + 4], "little") for at in range(0, len(sound) - 3, block)]
        assert starts == list(range(len(starts))), "nothing in the middle is missing"
