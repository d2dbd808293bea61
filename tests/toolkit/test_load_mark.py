from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolkit.backends import BACKENDS
from toolkit.cache import CACHE_VARIABLE
from toolkit.load_mark import LoadMark, PastFailure, forget_all, versions

pytest.importorskip("fcntl", reason="notes need locks that end with their process")
pytestmark = pytest.mark.usefixtures("own_folders")


def test_a_plan_nobody_tried_has_no_past() -> None:
    assert LoadMark("bundle", 512).past_failure() is None


def test_a_load_that_succeeded_leaves_no_suspicion() -> None:
    mark = LoadMark("bundle", 512)
    mark.begin(100)
    mark.succeed()
    assert LoadMark("bundle", 512).past_failure() is None


def test_a_failure_is_remembered_for_this_plan_only_until_it_succeeds() -> None:
    LoadMark("bundle", 512).fail("memory", 100)
    assert LoadMark("bundle", 512).past_failure() == PastFailure("memory", 100)
    assert LoadMark("bundle", 256).past_failure() is None
    LoadMark("bundle", 512).succeed()
    assert LoadMark("bundle", 512).past_failure() is None


_DIES_WHILE_LOADING = """
import os
from toolkit.load_mark import LoadMark
LoadMark("bundle", 512).begin(100)
os._exit(9)
"""


def test_an_app_that_died_while_it_loaded_is_seen_by_its_next_start(own_folders: Path) -> None:
    assert subprocess.run([sys.executable, "-c", _DIES_WHILE_LOADING], check=False).returncode == 9
    assert LoadMark("bundle", 512).past_failure() == PastFailure("died", 100)


def test_a_note_counts_for_a_day() -> None:
    """Nobody knows whether an app that died while it loaded died of the load."""
    mark = LoadMark("bundle", 512)
    mark.fail("signal", 100)
    hour = 3600
    for age, counts in ((23 * hour, True), (25 * hour, False)):
        os.utime(mark._path, (time.time() - age,) * 2)
        assert (mark.past_failure() is not None) is counts


def test_every_backend_of_this_package_has_an_engine_whose_version_counts() -> None:
    for name in BACKENDS:
        assert len(versions(name).split(", ")) == 2


def test_another_version_of_the_toolkit_or_of_the_engine_may_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"ondevice-toolkit": "1.0", "litert-lm-api": "0.18.1"}
    monkeypatch.setattr("toolkit.load_mark.installed_version", lambda name: installed[name])
    seen = [versions("litert")]
    for name in installed:
        installed[name] += ".1"
        seen.append(versions("litert"))
    assert len(set(seen)) == 3


def test_a_load_that_runs_now_is_no_failure() -> None:
    mark = LoadMark("bundle", 512)
    mark.begin(100)
    assert LoadMark("bundle", 512).past_failure() is None
    mark.abandon()


_LEAVES_WHILE_LOADING = """
import os
from toolkit.load_mark import LoadMark, abandon_all
marks = [LoadMark("bundle", 512), LoadMark("bundle", 1024)]
for mark in marks:
    mark.begin(100)
abandon_all()
os._exit(9)
"""


def test_a_load_left_on_purpose_is_no_failure(own_folders: Path) -> None:
    assert subprocess.run([sys.executable, "-c", _LEAVES_WHILE_LOADING], check=False).returncode == 9
    for context_length in (512, 1024):
        mark = LoadMark("bundle", context_length)
        assert mark._path.is_file(), "it was begun, and nobody holds its note now"
        assert mark.past_failure() is None


@pytest.mark.parametrize(
    ("failure", "free_now", "counts"),
    [
        (PastFailure("memory", 100), 100, True),
        (PastFailure("memory", 100), 126, False),
        (PastFailure("died", 100), 126, False),
        (PastFailure("memory", None), 126, True),
        (PastFailure("memory", 100), None, True),
        (PastFailure("signal", 100), 1000, True),
    ],
)
def test_more_free_memory_clears_a_failure_for_memory_only(failure: PastFailure, free_now: int | None, counts: bool) -> None:
    assert failure.still_counts(free_now) is counts


@pytest.mark.parametrize(
    ("note", "past"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'{"state": 3}', None),
        (b'{"state": "failed"}', PastFailure("died", None)),
        (b"\xff" * 5000, None),
    ],
)
def test_a_damaged_note_is_no_obstacle(note: bytes, past: PastFailure | None, own_folders: Path) -> None:
    mark = LoadMark("bundle", 512)
    mark._path.parent.mkdir(parents=True)
    mark._path.write_bytes(note)
    assert mark.past_failure() == past
    mark.succeed()
    assert mark.past_failure() is None


def test_a_cache_that_cannot_be_written_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "/dev/null/cache")
    mark = LoadMark("bundle", 512)
    mark.begin(100)
    mark.fail("memory", 100)
    assert mark.past_failure() is None


def test_notes_can_be_forgotten() -> None:
    LoadMark("a").fail("memory", 1)
    LoadMark("b").fail("memory", 1)
    assert forget_all() == 2 and LoadMark("a").past_failure() is None
