"""Killed at any instant: a child dies by SIGKILL just before its n-th file system call, for n all along a conversion."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from converters.package import OutputFolder
from converters.pipeline import convert
from converters.request import ConvertRequest
from tests.converters.small_model import SmallTarget, SmallVerifier, small_checkpoint, small_parts
from toolkit.bundle import Bundle
from toolkit.errors import FormatError

NAME = "small-small-int8"
ROOT = Path(__file__).parents[2]
EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir", "shutil.rmtree", "fcntl.flock"}


def run(root: Path, *, seed: int = 1, **request) -> SmallTarget:
    target = SmallTarget()
    parts = small_parts(root / "cache", target, verifier=SmallVerifier(), checkpoint=small_checkpoint(seed=seed))
    result = convert(ConvertRequest("small", targets=("small",), recipes=("int8",), out=root / "out", **request), parts=parts)
    assert result.exit_code == 0, result.errors
    return target


def killed_at(n: int, work: Callable[[], object]) -> bool:
    """Run `work` in a child that dies just before its n-th file system call; False if it ended before that."""
    pid = os.fork()
    if pid == 0:
        left = n

        def hook(event: str, arguments: object) -> None:
            nonlocal left
            if event in EVENTS:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(hook)
            work()
            os._exit(0)
        finally:
            os._exit(9)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def is_whole(place: Path) -> bool:
    """Whether a bundle is there, proven byte by byte; a half written one raises."""
    if not place.exists():
        return False
    Bundle.open(place, full_check=True)
    return True


def clean(root: Path) -> bool:
    return [path.name for path in (root / "out").iterdir()] == [NAME]


def n_calls(work: Callable[[], object]) -> int:
    """How many file system calls `work` makes, counted in a child."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        n, counting = 0, True

        def hook(event: str, arguments: object) -> None:
            nonlocal n
            n += counting and event in EVENTS

        sys.addaudithook(hook)
        try:
            work()
            counting = False
            os.write(write, str(n).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return int(os.read(read, 20))


def instants(n: int) -> list[int]:
    """Calls to die at: all of those that seal and publish a bundle, every sixth before and fourth after; and none."""
    return [*range(1, n - 65, 6), *range(n - 65, n - 24), *range(n - 24, n + 1, 4), n + 1000]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ONDEVICE_TOOLKIT_CACHE", str(tmp_path / "toolkit-cache"))
    run(tmp_path / "warm-up")  # imports done, so a child's calls are the conversion's own


def test_a_new_bundle_is_there_whole_or_not_at_all_and_resume_finishes_it(tmp_path):
    seen = set()
    for n in instants(n_calls(lambda: run(tmp_path / "counted"))):
        root = tmp_path / str(n)
        was_killed = killed_at(n, lambda root=root: run(root))
        seen.add((was_killed, is_whole(root / "out" / NAME)))
        run(root, resume=True)
        assert is_whole(root / "out" / NAME) and clean(root)
        assert not list((root / "cache").glob("*/*.building")) and not list((root / "cache").glob("*/quantized-*"))
    assert seen == {(True, False), (True, True), (False, True)}


def test_publishing_by_copy_would_be_caught(tmp_path, monkeypatch):
    """Must-fail twin: with a copy in place of the rename, some instant leaves half a bundle."""

    def publish(self: OutputFolder, folder: Path, name: str, *, force: bool) -> Path:
        return Path(shutil.copytree(folder, self.path / name))

    monkeypatch.setattr(OutputFolder, "publish", publish)
    n = n_calls(lambda: run(tmp_path / "counted"))
    damaged = 0
    for instant in range(n - 65, n - 24):
        root = tmp_path / str(instant)
        killed_at(instant, lambda root=root: run(root))
        try:
            is_whole(root / "out" / NAME)
        except FormatError:
            damaged += 1
    assert damaged > 0


def test_a_replaced_bundle_is_the_old_or_the_new_one_and_the_next_run_restores_it(tmp_path):
    seen = set()
    run(tmp_path / "old")
    old = Bundle.open(tmp_path / "old/out" / NAME).content_hash
    shutil.copytree(tmp_path / "old", tmp_path / "counted")
    for n in instants(n_calls(lambda: run(tmp_path / "counted", seed=2, force=True)))[::-1]:
        root = tmp_path / str(n)
        shutil.copytree(tmp_path / "old", root)
        killed_at(n, lambda root=root: run(root, seed=2, force=True))
        place = root / "out" / NAME
        here = Bundle.open(place, full_check=True).content_hash if place.exists() else "between"
        seen.add({old: "old", "between": "between"}.get(here, "new"))
        run(root, seed=2, force=True, resume=True)
        assert Bundle.open(place, full_check=True).content_hash != old and clean(root)
    assert seen == {"old", "between", "new"}, "between the two renames there is none, and the next run puts it back"


def test_a_bundle_lost_between_two_renames_comes_back_without_converting(tmp_path):
    run(tmp_path, seed=1)
    real = os.rename
    pid = os.fork()
    if pid == 0:

        def rename(source: object, target: object) -> None:
            real(source, target)
            if str(target).endswith(".old"):
                os.kill(os.getpid(), signal.SIGKILL)

        os.rename = rename
        run(tmp_path, seed=2, force=True)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    assert not (tmp_path / "out" / NAME).exists()
    target = run(tmp_path, seed=1)
    assert target.calls == ["check"] and is_whole(tmp_path / "out" / NAME) and clean(tmp_path)


def test_a_published_bundle_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Every file and folder of a bundle is fsynced before the rename that publishes it, and OUT after it."""
    order: list[str] = []
    real_sync, real_rename = os.fsync, os.rename

    def sync(descriptor: int) -> None:
        order.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        real_sync(descriptor)

    def rename(source: object, target: object) -> None:
        order.append(f"rename {Path(str(target)).name}")
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    run(tmp_path)
    published = order.index(f"rename {NAME}")
    for name in ("model.npz", "spec.json", "extra", "manifest.json.unfinished"):
        assert f"sync {name}" in order[:published]
    assert order.index("sync manifest.json.unfinished") < order.index("rename manifest.json") < published
    assert "sync out" in order[published:]


def start(root: Path, *arguments: str, source: str = "small") -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.converters.convert_small", source, "--to", "small", "--out", str(root / "out"), *arguments]
    environment = os.environ | {"ONDEVICE_TOOLKIT_CACHE": str(root / "cache")}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_command_killed_at_random_instants_always_resumes(tmp_path):
    started = time.monotonic()
    process = start(tmp_path / "whole")
    assert process.wait() == 0, process.stderr.read()
    whole_s = time.monotonic() - started
    times = random.Random(7)
    for round_index in range(8):
        root = tmp_path / str(round_index)
        process = start(root)
        time.sleep(whole_s * times.uniform(0.3, 1.05))
        process.kill()
        process.wait()
        is_whole(root / "out" / NAME)
        resumed = start(root, "--resume")
        assert resumed.wait() == 0, resumed.stderr.read()
        assert is_whole(root / "out" / NAME) and clean(root)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_exits_130_and_leaves_nothing_half_written(tmp_path, number):
    process = start(tmp_path, "--recipe", "fp16,int8", source="small-slow")
    for line in process.stderr:
        if "assembling fp16" in line:
            break
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == ""
    assert err.strip().splitlines()[-3].startswith("the conversion was interrupted") and "--resume" in err
    assert not (tmp_path / "out").exists()
    resumed = start(tmp_path, "--recipe", "fp16,int8", "--resume")
    _, err = resumed.communicate(timeout=60)
    assert resumed.returncode == 0 and "lowering the float model: done before" in err


@pytest.mark.parametrize("arguments", [(), ("--force",)])
def test_two_commands_at_once_into_one_folder_leave_one_whole_bundle(tmp_path, arguments):
    processes = [start(tmp_path, *arguments) for _ in range(3)]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert is_whole(tmp_path / "out" / NAME) and clean(tmp_path)


def test_two_commands_with_different_recipes_share_one_lowering(tmp_path):
    processes = [start(tmp_path, "--recipe", recipe, source="small-slow") for recipe in ("fp16", "int8")]
    errs = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errs
    assert sum("lowering the float model ..." in err for err in errs) == 1
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"small-small-fp16", "small-small-int8"}


def test_two_different_checkpoints_of_one_name_never_mix(tmp_path):
    processes = [start(tmp_path, source=source) for source in ("small-slow", "small-other")]
    errs = [process.communicate(timeout=120)[1] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 2], errs
    assert is_whole(tmp_path / "out" / NAME) and clean(tmp_path)
