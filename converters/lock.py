"""Advisory file locks between conversions. The kernel drops them when their holder dies, so none is ever stale."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

_MOST_TRIES = 1000
_PLAIN_TRIES = 3


def _open_locked(path: Path, operation: int) -> int | None:
    """A descriptor of the lock file that holds the lock; None if another process holds it (non-blocking only).

    The file may be gone before it is locked: a holder removes it on leaving, and others sweep its folder when it is empty. Then
    the new file is locked instead. Each failed try means that somebody else got on meanwhile, so the tries are bounded.
    """
    for n_tries in range(_MOST_TRIES):
        descriptor = _open_plainly(path) if n_tries < _PLAIN_TRIES else _open_in_new_folder(path)
        if descriptor is None:
            continue
        try:
            fcntl.flock(descriptor, operation)
            if _is_still(path, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, f"it was swept away {_MOST_TRIES} times", str(path))


def _open_plainly(path: Path) -> int | None:
    """The lock file, made if missing; None if its folder went away meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except (FileNotFoundError, FileExistsError):
        if path.parent.exists() and not path.parent.is_dir():
            raise
        return None


def _open_in_new_folder(path: Path) -> int | None:
    """As `_open_plainly`, but the folder arrives with the file already in it, so there is no moment at which it could be swept.

    A folder can be renamed onto an empty one. If others have files in it by now, nobody sweeps it, and the plain way will do.
    """
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f"{path.parent.name}.", suffix=".new", dir=path.parent.parent))
    try:
        new.chmod(0o755)
        descriptor = os.open(new / path.name, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            os.rename(new, path.parent)
        except OSError:
            os.close(descriptor)
            return _open_plainly(path)
        return descriptor
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def hold(path: Path, *, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock exclusively, waiting for it if need be; its file is removed at the end.

    Args:
        path: The lock file; its folder is made.
        on_wait: Called once before waiting, to tell the user for what.
    """
    descriptor = _open_locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if descriptor is None:
        if on_wait is not None:
            on_wait()
        descriptor = _open_locked(path, fcntl.LOCK_EX)
    assert descriptor is not None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


@contextlib.contextmanager
def try_hold(path: Path) -> Iterator[bool]:
    """Hold a lock exclusively if it is free: yields whether it was."""
    descriptor = _open_locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)


class SharedUse:
    """A folder that several conversions use; whoever is alone in it may clear it, at the start or at the end."""

    def __init__(self, path: Path, *, if_alone: Callable[[], None] | None = None) -> None:
        """Start using a folder by its lock file; `if_alone` runs first if nobody else does (new users wait until it is done)."""
        descriptor = _open_locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if descriptor is not None:
            if if_alone is not None:
                if_alone()
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        else:
            descriptor = _open_locked(path, fcntl.LOCK_SH)
        assert descriptor is not None
        self._descriptor: int | None = descriptor

    def leave(self, *, if_last: Callable[[], None] | None = None) -> None:
        """Stop using the folder, and run `if_last` when nobody else does. Does nothing the second time."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            if if_last is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if_last()
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)
