import json
import os
import signal
from pathlib import Path

import pytest

from converters.progress import Silent
from converters.stages import JOURNAL_NAME, Stage, WorkFolder, key_of, record_files

KEY = key_of("some", {"content": 1})


class Counted:
    """A stage's build that counts how often it ran."""

    def __init__(self, text: str = "weights") -> None:
        self.n_runs, self.text = 0, text

    def __call__(self, folder: Path) -> Path:
        self.n_runs += 1
        (folder / "inner").mkdir()
        (folder / "inner/a.bin").write_text(self.text)
        (folder / "b.bin").write_text("more")
        return folder / "inner"


def stage(build, *, name: str = "lowered", key: str = KEY) -> Stage:
    return Stage(name, key, "lowering", build)


def run(root: Path, build, **kwargs) -> Path:
    """One run of a program: opens the folder, runs the stage, leaves."""
    work = WorkFolder(root)
    try:
        return work.run(stage(build, **kwargs), Silent())
    finally:
        work.leave()


def test_a_finished_stage_is_not_built_again(tmp_path):
    build = Counted()
    first, second = run(tmp_path, build), run(tmp_path, build)
    assert first == second and build.n_runs == 1
    assert (first / "a.bin").read_text() == "weights"


def test_another_key_is_another_stage(tmp_path):
    build = Counted()
    assert run(tmp_path, build) != run(tmp_path, build, key=key_of("some", {"content": 2}))
    assert build.n_runs == 2


def test_a_stage_may_be_the_folder_itself(tmp_path):
    def build(folder: Path) -> Path:
        (folder / "x").write_text("1")
        return folder

    assert (run(tmp_path, build) / "x").read_text() == "1"
    assert (run(tmp_path, build) / "x").read_text() == "1"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def keep_times(path: Path, change) -> None:
    """Change a file as a failing disk would: size and times stay."""
    status = path.stat()
    change(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    "damage",
    [
        lambda place: keep_times(place / "inner/a.bin", flip),
        lambda place: (place / "b.bin").unlink(),
        lambda place: (place / "b.bin").write_text(""),
        lambda place: (place / JOURNAL_NAME).unlink(),
        lambda place: (place / JOURNAL_NAME).write_text("{"),
        lambda place: (place / JOURNAL_NAME).write_text("[]"),
        lambda place: (place / JOURNAL_NAME).write_text('{"files": [{"path": 1}]}'),
    ],
)
def test_a_damaged_stage_is_built_again(tmp_path, damage):
    build = Counted()
    output = run(tmp_path, build)
    damage(output.parent)
    assert (run(tmp_path, build) / "a.bin").read_text() == "weights"
    assert build.n_runs == 2


def test_a_journal_for_another_key_does_not_count(tmp_path):
    build = Counted()
    journal_path = run(tmp_path, build).parent / JOURNAL_NAME
    journal = json.loads(journal_path.read_text())
    journal_path.write_text(json.dumps(journal | {"key": key_of("other")}))
    run(tmp_path, build)
    assert build.n_runs == 2


@pytest.mark.parametrize("error", [OSError("disk"), KeyboardInterrupt()])
def test_a_failed_stage_leaves_nothing_and_is_built_next_time(tmp_path, error):
    def fail(folder: Path) -> Path:
        (folder / "half").write_text("half")
        raise error

    with pytest.raises(type(error)):
        run(tmp_path, fail)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    build = Counted()
    run(tmp_path, build)
    assert build.n_runs == 1


def test_a_killed_stage_is_no_stage_and_its_rest_is_swept(tmp_path):
    pid = os.fork()
    if pid == 0:

        def die(folder: Path) -> Path:
            (folder / "half").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
            return folder

        run(tmp_path, die)
    os.waitpid(pid, 0)
    assert any(path.name.endswith(".building") for path in tmp_path.iterdir())
    build = Counted()
    output = run(tmp_path, build)
    assert build.n_runs == 1
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [output.parent]


def test_two_processes_build_a_stage_once(tmp_path):
    def slow(folder: Path) -> Path:
        with (tmp_path.parent / "runs").open("a") as file:
            file.write("x")
        signal.sigtimedwait([signal.SIGUSR1], 0.2)
        return Counted()(folder)

    pids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            run(tmp_path, slow)
            os._exit(0)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]
    assert (tmp_path.parent / "runs").read_text() == "x"
    (tmp_path.parent / "runs").unlink()


def test_leaving_drops_what_is_chosen_but_never_what_another_run_uses(tmp_path):
    first, second = WorkFolder(tmp_path), WorkFolder(tmp_path)
    kept = first.run(stage(Counted(), name="lowered"), Silent())
    dropped = first.run(stage(Counted(), name="quantized-int8"), Silent())
    first.leave(drop=lambda name: name.startswith("quantized-"))
    assert kept.exists() and dropped.exists()
    second.leave(drop=lambda name: name.startswith("quantized-"))
    assert kept.exists() and not dropped.exists()


def test_what_an_earlier_run_left_is_forgotten_unless_resumed(tmp_path):
    build = Counted()
    run(tmp_path, build, name="quantized-int8")
    WorkFolder(tmp_path).leave()
    run(tmp_path, build, name="quantized-int8")
    assert build.n_runs == 1
    WorkFolder(tmp_path, forget=lambda name: name.startswith("quantized-")).leave()
    run(tmp_path, build, name="quantized-int8")
    assert build.n_runs == 2


def test_links_are_not_recorded(tmp_path):
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="link"):
        record_files(tmp_path)


def test_keys_differ_in_any_part_and_not_by_order():
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2}) and key_of("a", "b") != key_of("ab")
