"""Advisory file locks between conversions. The kernel drops them when their holder dies, so none is ever stale."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_SWEPT_SECONDS = 20.0  # a folder that is swept by others comes and goes; one that cannot be made never comes
_MAX_PAUSE_SECONDS = 0.005


def _open_locked(path: Path, operation: int) -> int | None:
    """A descriptor of the lock file that holds the lock; None if another process holds it (non-blocking only)."""
    deadline = time.monotonic() + _SWEPT_SECONDS
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except (FileNotFoundError, FileExistsError):  # its folder was swept between the two calls, or inside the first one
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0, _MAX_PAUSE_SECONDS))  # out of step with whoever sweeps
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
        os.close(descriptor)  # its last holder removed the file while we waited: lock the new one


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
