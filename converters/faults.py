"""What the operating system and the libraries say when they fail, in words a user can act on."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.errors import BackendUnavailableError, BudgetError, ToolkitError, UsageError
from toolkit.units import format_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded")


def nearest_existing(path: Path) -> Path:
    """The path itself, or the closest folder above it that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def explain(error: Exception, doing: str, folder: Path) -> ToolkitError:
    """Turn any failure of a stage into an error with a cause and a fix.

    A `ToolkitError` stays as it is, except one that only passes on, from a child process, that the disk is full.

    Args:
        error: What was raised.
        doing: What was being done, as in "cannot DOING": `write the bundle x`.
        folder: Where it was writing, to say how full that disk is.
    """
    if isinstance(error, ToolkitError) and not (type(error) is ToolkitError and any(text in error.why for text in _FULL_TEXTS)):
        return error
    number = error.errno if isinstance(error, OSError) else None
    if number in _FULL or any(text in str(error) for text in _FULL_TEXTS):
        free = shutil.disk_usage(nearest_existing(folder)).free
        return BudgetError(
            f"cannot {doing}: the disk is full",
            why=f"{format_bytes(free)} are free at {folder}",
            fix="free some space there (or choose another --out, or another cache folder), then run the same command with --resume",
        )
    if isinstance(error, OSError) and number in _FORBIDDEN:
        return UsageError(
            f"cannot {doing}: no permission to write",
            why=f"{error.filename or folder}: {os.strerror(number or 0)}",
            fix="choose a folder you may write to with --out",
        )
    if isinstance(error, MemoryError):
        return BudgetError(
            f"cannot {doing}: memory ran out", why="an allocation failed", fix="give a smaller --max-memory or close other programs"
        )
    if isinstance(error, ModuleNotFoundError):
        return BackendUnavailableError(
            f"cannot {doing}", why=f"{error.name} is not installed", fix="pip install 'ondevice-toolkit[convert]'"
        )
    text = " ".join(str(error).split())[:400]
    return ToolkitError(
        f"cannot {doing}", why=f"{type(error).__name__}: {text}", fix="run it again with --debug to see where, and report it"
    )


@contextmanager
def explained(doing: str, folder: Path) -> Iterator[None]:
    """Raise any failure inside the block as `explain` words it. Interrupts pass."""
    try:
        yield
    except Exception as error:
        failure = explain(error, doing, folder)
        if failure is error:
            raise
        raise failure from error
