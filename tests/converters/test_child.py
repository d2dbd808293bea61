"""A child's answer, its errors and its deaths, as the parent sees them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from converters.child import MOST_LOGS, TIME_LIMIT, ChildDeathError, run_in_child
from toolkit.errors import BudgetError, FormatError, ToolkitError

JOBS = "tests.converters.child_jobs"


def test_a_child_returns_what_the_function_returned_and_keeps_its_noise(capfd: pytest.CaptureFixture[str]) -> None:
    answer = run_in_child(f"{JOBS}:double", {"value": 21}, what="double")
    assert answer["doubled"] == 42
    assert answer["pid"] != os.getpid()
    assert capfd.readouterr() == ("", "")


def test_an_error_made_for_users_comes_back_as_it_was_raised() -> None:
    with pytest.raises(FormatError) as caught:
        run_in_child(f"{JOBS}:refuse", {}, what="read")
    assert (caught.value.what, caught.value.why, caught.value.fix) == ("the thing is damaged", "3 bytes are missing", "get it again")


def test_a_defect_names_itself_and_the_log_with_its_traceback(own_folders: Path) -> None:
    with pytest.raises(ToolkitError, match="could not stumble") as caught:
        run_in_child(f"{JOBS}:stumble", {}, what="stumble")
    assert caught.value.why.startswith("KeyError")
    log = Path(caught.value.fix.split()[1].rstrip(","))
    assert log.parent == own_folders / "cache/logs"
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_child_that_crashes_is_reported_with_signal_and_last_words(number: signal.Signals, own_folders: Path) -> None:
    with pytest.raises(ChildDeathError) as caught:
        run_in_child(f"{JOBS}:die", {"signal_number": int(number)}, what="parse")
    assert f"died of {number.name}" in caught.value.what
    assert caught.value.cause == number.name
    assert "last words" in caught.value.why


def test_a_killed_child_is_a_matter_of_memory() -> None:
    with pytest.raises(BudgetError, match="could not export: the process was killed") as caught:
        run_in_child(f"{JOBS}:die", {"signal_number": int(signal.SIGKILL)}, what="export")
    assert "--max-memory" in caught.value.fix


def test_a_child_that_takes_too_long_is_ended(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = own_folders / "pid"

    class OnceItRuns(threading.Timer):
        """Runs out when the child says that it runs, not after seconds in which a busy machine may not have started it."""

        def run(self) -> None:
            while not self.finished.wait(0.02):
                if note.exists() and note.read_text():
                    self.function()
                    return

    monkeypatch.setattr(threading, "Timer", OnceItRuns)
    with pytest.raises(ChildDeathError, match="could not wait") as caught:
        run_in_child(f"{JOBS}:wait_forever", {"note": str(note)}, what="wait", timeout_s=3)
    assert caught.value.cause == TIME_LIMIT and "longer than 3 s" in caught.value.why
    assert not _runs(int(note.read_text()))


def test_the_time_a_child_has_is_the_time_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    timer = threading.Timer
    monkeypatch.setattr(threading, "Timer", lambda seconds, end: (given.append(seconds), timer(seconds, end))[1])
    assert run_in_child(f"{JOBS}:double", {"value": 2}, what="double", timeout_s=900)["doubled"] == 4
    assert given == [900]


def test_nothing_is_left_in_the_temporary_folder_and_ten_logs_in_the_cache(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = own_folders / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for _ in range(12):
        with pytest.raises(ToolkitError):
            run_in_child(f"{JOBS}:leave", {"code": 3}, what="leave")
    assert list(temporary.iterdir()) == []
    assert len(list((own_folders / "cache/logs").iterdir())) == MOST_LOGS


def test_a_log_that_cannot_be_kept_does_not_hide_the_error(own_folders: Path) -> None:
    (own_folders / "cache").write_text("a file in the way")
    with pytest.raises(ToolkitError, match="could not leave: the process died of exit code 3") as caught:
        run_in_child(f"{JOBS}:leave", {"code": 3}, what="leave")
    assert "cache folder" in caught.value.fix


def test_a_child_that_leaves_without_an_answer_is_an_error(own_folders: Path) -> None:
    for code in (0, 3):
        with pytest.raises(ToolkitError, match=f"exit code {code}"):
            run_in_child(f"{JOBS}:leave", {"code": code}, what="leave")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_child_never_outlives_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    note = tmp_path / "pid"
    call = f"from converters.child import run_in_child; run_in_child('{JOBS}:wait_forever', {{'note': {str(note)!r}}}, what='wait')"
    parent = subprocess.Popen([sys.executable, "-c", call], stderr=subprocess.DEVNULL)
    child = int(_eventually(lambda: note.read_text() if note.exists() else ""))
    parent.send_signal(number)
    parent.wait(timeout=30)
    assert _eventually(lambda: "gone" if not _runs(child) else "") == "gone"


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _eventually(ask: object) -> str:
    for _ in range(600):
        if answer := ask():  # type: ignore[operator]
            return str(answer)
        time.sleep(0.05)
    raise AssertionError("it did not happen within 30 s")
