from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mobile_app.report import publish as publishing
from mobile_app.report.publish import FILES, REPORT, publish
from tests.mobile_app.report.spoken import PUMP, note_of
from toolkit.cache import FULL_ERRNOS
from toolkit.errors import BudgetError, UsageError

_WRITER = """
import sys
from pathlib import Path
from mobile_app.report.publish import publish
from tests.mobile_app.report.spoken import PUMP, note_of
notes = [note_of(*PUMP), note_of(*PUMP[:4])]
print("ready", flush=True)
while True:
    for note in notes:
        publish(Path(sys.argv[1]), note, force=True)
"""


def is_whole(folder: Path) -> bool:
    """Whether what `report.json` says of the other files is so."""
    document = json.loads((folder / REPORT).read_text("utf-8"))
    return set(document["files"]) == set(FILES) and all(
        hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest for name, digest in document["files"].items()
    )


def test_a_report_is_four_files_that_know_each_other(tmp_path: Path) -> None:
    assert publish(tmp_path / "new" / "report", note_of(*PUMP))
    assert sorted(path.name for path in (tmp_path / "new" / "report").iterdir()) == sorted([*FILES, REPORT])
    assert is_whole(tmp_path / "new" / "report")


def test_the_same_report_is_not_written_twice(tmp_path: Path) -> None:
    publish(tmp_path, note_of(*PUMP))
    before = (tmp_path / REPORT).stat().st_mtime_ns
    assert not publish(tmp_path, note_of(*PUMP))
    assert (tmp_path / REPORT).stat().st_mtime_ns == before


def test_another_report_is_not_replaced_unless_forced(tmp_path: Path) -> None:
    publish(tmp_path, note_of(*PUMP))
    with pytest.raises(UsageError, match="another report"):
        publish(tmp_path, note_of(*PUMP[:3]))
    assert publish(tmp_path, note_of(*PUMP[:3]), force=True)
    assert is_whole(tmp_path)


def test_other_files_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "note.wav").write_bytes(b"sound")
    publish(tmp_path, note_of(*PUMP))
    assert (tmp_path / "note.wav").read_bytes() == b"sound"


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="cannot hold a report"):
        publish(tmp_path / "out", note_of(*PUMP))
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("number", FULL_ERRNOS)
def test_a_full_disk_leaves_the_report_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    publish(tmp_path, note_of(*PUMP))

    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BudgetError) as raised:
        publish(tmp_path, note_of(*PUMP[:3]), force=True)
    assert os.strerror(number) in raised.value.why
    assert is_whole(tmp_path)
    assert not list(tmp_path.glob(".writing.*"))


def test_killed_at_any_moment_a_folder_with_a_report_has_a_whole_one(tmp_path: Path) -> None:
    for round_index in range(8):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(0.013 * round_index)
        process.kill()
        process.wait()
        process.stdout.close()
        assert not (tmp_path / REPORT).exists() or is_whole(tmp_path)
    publish(tmp_path, note_of(*PUMP), force=True)
    assert is_whole(tmp_path)
    assert not list(tmp_path.glob(".writing.*")), "leftovers of the dead are swept"


def test_the_check_of_whole_reports_sees_one_that_is_not(tmp_path: Path) -> None:
    publish(tmp_path, note_of(*PUMP))
    (tmp_path / "report.md").write_text("half")
    assert not is_whole(tmp_path)
    assert not publishing.is_there(tmp_path, publishing.report_files(note_of(*PUMP)))
