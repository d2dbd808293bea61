from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from toolkit.cache import (
    CACHE_VARIABLE,
    cache_directory,
    cache_root,
    check_free_disk,
    config_root,
    directory_bytes,
    locked,
    remove_directory,
    sha256_file,
    write_error,
)
from toolkit.errors import BudgetError, ToolkitError, UsageError

HOLD_LOCK = """
import sys
from pathlib import Path
from toolkit.cache import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (CACHE_VARIABLE, "ONDEVICE_TOOLKIT_CONFIG", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "ANDROID_PRIVATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    return monkeypatch


def test_the_cache_is_where_the_platform_keeps_caches(bare_environment: pytest.MonkeyPatch) -> None:
    bare_environment.setenv("HOME", "/home/someone")
    assert cache_root() == Path("/home/someone/.cache/ondevice-toolkit")
    assert config_root() == Path("/home/someone/.config/ondevice-toolkit")
    bare_environment.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_root() == Path("/elsewhere/ondevice-toolkit")
    bare_environment.setattr(sys, "platform", "darwin")
    assert cache_root() == Path("/home/someone/Library/Caches/ondevice-toolkit")
    bare_environment.setenv("ANDROID_PRIVATE", "/data/app/files")
    assert cache_root() == Path("/data/app/files/cache/ondevice-toolkit")
    assert config_root() == Path("/data/app/files/config/ondevice-toolkit")
    bare_environment.setenv(CACHE_VARIABLE, "/mine")
    assert cache_root() == Path("/mine")


def test_a_cache_that_cannot_be_created_says_which_variable_to_set(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own_folders / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(own_folders / "file" / "below"))
    with pytest.raises(ToolkitError, match=CACHE_VARIABLE) as caught:
        cache_directory("models")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("place", ["/proc/nope", os.devnull])
def test_a_place_that_takes_no_folders_is_a_request_to_mend(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, place)
    with pytest.raises(UsageError, match=CACHE_VARIABLE):
        cache_directory("models")


def test_a_full_disk_is_a_budget_error_and_any_other_cause_is_not(tmp_path: Path) -> None:
    assert isinstance(write_error(tmp_path, OSError(errno.ENOSPC, "full")), BudgetError)
    refused = write_error(tmp_path / "not" / "there", OSError(errno.EACCES, "Permission denied"))
    assert not isinstance(refused, BudgetError)
    assert "Permission denied" in str(refused)


def test_work_larger_than_the_disk_is_refused_with_both_figures(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="needs .* TiB and 64 MiB to spare") as caught:
        check_free_disk(tmp_path / "missing" / "folder", 2**50, "fetching everything")
    assert re.search(r"[\d.]+ [KMGT]iB are free", caught.value.why)
    check_free_disk(tmp_path, 1, "fetching one byte")


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**20 + 1, 3 * 2**20])
def test_the_hash_of_a_file_is_the_hash_of_its_bytes(tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    path = tmp_path / "file"
    path.write_bytes(content[:size])
    seen: list[float] = []
    assert sha256_file(path, seen.append) == hashlib.sha256(content[:size]).hexdigest()
    assert sum(seen) == size
    path.write_bytes(content[:size] + b"x")
    assert sha256_file(path) != hashlib.sha256(content[:size]).hexdigest()


def test_removing_a_folder_returns_the_bytes_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "entry"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_bytes(b"x" * 1000)
    (folder / "deep" / "b").write_bytes(b"x" * 24)
    (folder / "link").symlink_to(folder / "a")
    assert directory_bytes(folder) == 1024
    assert remove_directory(folder) == 1024
    assert list(tmp_path.iterdir()) == []
    assert directory_bytes(folder) == 0


def test_a_lock_held_by_another_process_is_waited_for_and_dies_with_it(tmp_path: Path) -> None:
    path = tmp_path / "some.lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD_LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    events: list[str] = []

    def on_wait() -> None:
        events.append("waits")
        holder.kill()

    with locked(path, on_wait):
        events.append("holds")
    holder.wait()
    holder.stdout.close()
    assert events == ["waits", "holds"]


def test_two_threads_never_hold_one_lock_together(tmp_path: Path) -> None:
    inside, most = 0, 0

    def enter() -> None:
        nonlocal inside, most
        for _ in range(20):
            with locked(tmp_path / "some.lock"):
                inside += 1
                most = max(most, inside)
                os.sched_yield()
                inside -= 1

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
