import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from converters.lock import SharedUse, _open_plainly, hold, try_hold


def in_child(work) -> int:
    """Run `work` in a forked process that never returns here; gives its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def test_a_held_lock_is_seen_and_a_released_one_is_free(tmp_path):
    lock = tmp_path / "a.lock"
    with hold(lock):
        with try_hold(lock) as is_free:
            assert not is_free
    with try_hold(lock) as is_free:
        assert is_free


def test_waiting_is_announced_once_and_ends_when_the_holder_leaves(tmp_path):
    lock, waits, order = tmp_path / "a.lock", [], []
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with hold(lock):
            inside.set()
            leave.wait(10)
            order.append("first")

    def on_wait() -> None:
        waits.append(1)
        leave.set()

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    with hold(lock, on_wait=on_wait):
        order.append("second")
    thread.join()
    assert order == ["first", "second"] and waits == [1]


def test_a_killed_holder_leaves_a_free_lock(tmp_path):
    lock = tmp_path / "a.lock"
    read, write = os.pipe()

    def work() -> None:
        with hold(lock):
            os.write(write, b"x")
            signal.pause()

    pid = in_child(work)
    assert os.read(read, 1) == b"x"
    with try_hold(lock) as is_free:
        assert not is_free
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert lock.exists()
    with try_hold(lock) as is_free:
        assert is_free


def test_the_file_is_removed_so_that_folders_stay_clean(tmp_path):
    with hold(tmp_path / "deep/a.lock"):
        assert (tmp_path / "deep/a.lock").exists()
    assert list((tmp_path / "deep").iterdir()) == []


def test_many_processes_never_hold_it_together(tmp_path):
    """Each adds one to a number in a file, which loses counts if two are inside at once."""
    counter, lock = tmp_path / "counter", tmp_path / "a.lock"
    counter.write_text("0")

    def work() -> None:
        for _ in range(50):
            with hold(lock):
                counter.write_text(str(int(counter.read_text()) + 1))

    for pid in [in_child(work) for _ in range(4)]:
        assert os.waitpid(pid, 0)[1] == 0
    assert counter.read_text() == "200"


def test_only_whoever_is_alone_clears_a_shared_folder(tmp_path):
    cleared: list[str] = []
    first = SharedUse(tmp_path / "in-use", if_alone=lambda: cleared.append("start"))
    second = SharedUse(tmp_path / "in-use", if_alone=lambda: cleared.append("second start"))
    first.leave(if_last=lambda: cleared.append("first end"))
    second.leave(if_last=lambda: cleared.append("end"))
    second.leave(if_last=lambda: cleared.append("again"))
    assert cleared == ["start", "end"]


def sweep_for_ever(folder: Path) -> None:
    while True:
        try:
            folder.rmdir()
        except OSError:
            pass


@pytest.fixture
def sweepers(tmp_path: Path) -> Iterator[Path]:
    """A folder that two processes and a thread remove whenever it is empty, without a pause."""
    folder = tmp_path / "sometimes"
    pids = [in_child(lambda: sweep_for_ever(folder)) for _ in range(2)]
    stop = threading.Event()

    def sweep() -> None:
        while not stop.is_set():
            try:
                folder.rmdir()
            except OSError:
                pass

    thread = threading.Thread(target=sweep)
    thread.start()
    yield folder
    stop.set()
    thread.join()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_lock_in_a_folder_that_is_swept_without_a_pause_is_still_got(sweepers: Path) -> None:
    for _ in range(500):
        with hold(sweepers / "a.lock"):
            assert (sweepers / "a.lock").exists()
    assert [path for path in sweepers.parent.iterdir() if path != sweepers] == []


def test_a_sweeper_that_always_comes_between_making_the_folder_and_the_file_is_got_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, open_file = tmp_path / "sometimes", os.open

    def open_after_sweeping(path: Path, *arguments: int) -> int:
        if Path(path).parent == folder and not any(folder.iterdir()):
            folder.rmdir()
        return open_file(path, *arguments)

    monkeypatch.setattr(os, "open", open_after_sweeping)
    assert _open_plainly(folder / "a.lock") is None
    for _ in range(5):
        with hold(folder / "a.lock"), try_hold(folder / "a.lock") as is_free:
            assert not is_free
    monkeypatch.setattr("converters.lock._open_in_new_folder", _open_plainly)
    with pytest.raises(FileNotFoundError, match="swept away 1000 times"), hold(folder / "a.lock"):
        pass


def test_processes_that_lock_in_a_swept_folder_never_hold_it_together(sweepers: Path) -> None:
    counter = sweepers.parent / "counter"
    counter.write_text("0")

    def work() -> None:
        for _ in range(50):
            with hold(sweepers / "a.lock"):
                counter.write_text(str(int(counter.read_text()) + 1))

    for pid in [in_child(work) for _ in range(4)]:
        assert os.waitpid(pid, 0)[1] == 0
    assert counter.read_text() == "200"


def test_a_file_in_the_way_of_the_folder_is_an_error_not_a_wait(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError), hold(tmp_path / "file" / "a.lock"):
        pass
