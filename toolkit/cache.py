"""Where downloads, acceptances and derived files live, and how two processes share them safely."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from toolkit.errors import BudgetError, ToolkitError, UsageError
from toolkit.units import format_bytes

APP_NAME = "ondevice-toolkit"
CACHE_VARIABLE = "ONDEVICE_TOOLKIT_CACHE"
CONFIG_VARIABLE = "ONDEVICE_TOOLKIT_CONFIG"
_CHUNK_BYTES = 2**20
_MIN_FREE_BYTES = 64 * 2**20
FULL_ERRNOS = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG)
LOCAL_ERRNOS = (*FULL_ERRNOS, *_NOT_WRITABLE)  # of this machine's folders; no network ever answers with one


def cache_root() -> Path:
    """The folder for what can be fetched or computed again. Not created here.

    `ONDEVICE_TOOLKIT_CACHE` if set; else Android's private storage, `~/Library/Caches`, `%LOCALAPPDATA%` or
    `$XDG_CACHE_HOME` (`~/.cache`), plus `ondevice-toolkit`.
    """
    return _platform_root(CACHE_VARIABLE, "XDG_CACHE_HOME", ".cache", mac="Library/Caches")


def config_root() -> Path:
    """The folder for what the user decided: accepted licences. Not created here.

    `ONDEVICE_TOOLKIT_CONFIG` if set; else the platform's configuration folder plus `ondevice-toolkit`.
    """
    return _platform_root(CONFIG_VARIABLE, "XDG_CONFIG_HOME", ".config", mac="Library/Application Support")


def _platform_root(variable: str, xdg: str, dotted: str, *, mac: str) -> Path:
    if os.environ.get(variable):
        return Path(os.environ[variable])
    if os.environ.get("ANDROID_PRIVATE"):
        return Path(os.environ["ANDROID_PRIVATE"]) / dotted.lstrip(".") / APP_NAME
    if sys.platform == "darwin":
        return Path.home() / mac / APP_NAME
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / APP_NAME / dotted.lstrip(".")
    return Path(os.environ.get(xdg) or Path.home() / dotted) / APP_NAME


def cache_directory(*parts: str) -> Path:
    """A folder below `cache_root()`, created if missing.

    Raises:
        UsageError: It cannot be created: no permission, or a file is in the way.
        BudgetError: The disk is full.
    """
    return _created(cache_root().joinpath(*parts), CACHE_VARIABLE)


def config_directory() -> Path:
    """`config_root()`, created if missing.

    Raises:
        UsageError: It cannot be created: no permission, or a file is in the way.
        BudgetError: The disk is full.
    """
    return _created(config_root(), CONFIG_VARIABLE)


def _created(path: Path, variable: str) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = f"make it writable, or set {variable} to a folder that is"
        if error.errno == errno.ENOENT:  # though parents are made: a file system such as /proc, which takes no folders
            raise UsageError(f"{path} cannot be written", why=error.strerror or str(error), fix=fix) from error
        raise write_error(path, error, fix=fix) from error
    return path


def write_error(path: Path, error: OSError, *, fix: str | None = None) -> ToolkitError:
    """What an OSError while writing below `path` means: a full disk is a budget (exit 3), a folder that was never the user's to
    write to is a wrong request (exit 2), anything else a failure."""
    if error.errno in FULL_ERRNOS:
        free = shutil.disk_usage(_nearest_existing(path)).free
        return BudgetError(
            f"no space left to write {path}",
            why=f"{format_bytes(free)} are free there",
            fix=f"free some space (toolkit models list shows what can go), or set {_variable_of(path)} to a folder on another disk",
        )
    kind = UsageError if error.errno in _NOT_WRITABLE else ToolkitError
    return kind(f"{path} cannot be written", why=error.strerror or str(error), fix=fix or "check the folder's permissions")


def _variable_of(path: Path) -> str:
    """The variable that would put `path` elsewhere."""
    return CONFIG_VARIABLE if config_root() in (path, *path.parents) else CACHE_VARIABLE


def check_free_disk(path: Path, needed_bytes: int, purpose: str) -> None:
    """Refuse work that would not fit on the disk that holds `path` (which need not exist yet).

    Raises:
        BudgetError: Fewer than `needed_bytes` plus 64 MiB are free; the text carries both figures.
    """
    folder = _nearest_existing(path)
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + _MIN_FREE_BYTES:
        raise BudgetError(
            f"{purpose} does not fit on the disk of {folder}",
            why=f"needs {format_bytes(needed_bytes)} and 64 MiB to spare; {format_bytes(free)} are free",
            fix=f"free {format_bytes(needed_bytes + _MIN_FREE_BYTES - free)}, or set {CACHE_VARIABLE} to a folder on another disk",
        )


def _nearest_existing(path: Path) -> Path:
    for folder in (path, *path.absolute().parents):
        if folder.is_dir():
            return folder
    return Path.cwd()


def sha256_file(path: Path, advance: Callable[[float], None] | None = None) -> str:
    """SHA-256 of a file in hex, read in 1 MiB pieces; `advance` gets the bytes of each piece."""
    with path.open("rb") as stream:
        return sha256_stream(stream, advance)


def sha256_stream(stream: BinaryIO, advance: Callable[[float], None] | None = None) -> str:
    """SHA-256 in hex of what is left in `stream`, read in 1 MiB pieces."""
    digest = hashlib.sha256()
    while piece := stream.read(_CHUNK_BYTES):
        digest.update(piece)
        if advance is not None:
            advance(len(piece))
    return digest.hexdigest()


def directory_bytes(path: Path) -> int:
    """Bytes of all regular files below `path`; links are not followed, so a shared blob counts once."""
    if not path.exists():
        return 0
    return sum(entry.lstat().st_size for entry in path.rglob("*") if entry.is_file() and not entry.is_symlink())


def remove_directory(path: Path) -> int:
    """Delete a folder so that no reader ever sees half of it; returns the bytes freed.

    Raises:
        ToolkitError: No permission.
    """
    freed = directory_bytes(path)
    trash = path.with_name(f".removing-{os.getpid()}-{path.name}")
    try:
        path.rename(trash)
        shutil.rmtree(trash)
    except OSError as error:
        kind = UsageError if error.errno in _NOT_WRITABLE else ToolkitError
        raise kind(f"{path} cannot be removed", why=error.strerror or str(error), fix="check the folder's permissions") from error
    return freed


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock on the file `path` (created, kept empty) across processes.

    The operating system drops the lock when its process dies, so a killed run leaves nothing to clean.
    `on_wait` is called once when another process holds it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+b")
    except OSError as error:
        raise write_error(path, error) from error
    with handle:
        if not _try_lock(handle.fileno()):
            if on_wait is not None:
                on_wait()
            _wait_for_lock(handle.fileno())
        yield


if sys.platform == "win32":
    import msvcrt
    import time

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _wait_for_lock(descriptor: int) -> None:
        while not _try_lock(descriptor):
            time.sleep(0.1)
else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _wait_for_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
