"""Files that are there whole or not at all, and still there when the battery has ended."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write what is to be at `path`: beside it, moved there at the end, removed if the end is not reached."""
    work = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield work
        sync_file(work)
        os.replace(work, path)
        sync_folder(path.parent)
    finally:
        work.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Force a file to the disk."""
    with path.open("r+b") as stream:  # Windows syncs no file that is open for reading only
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk, where the system can."""
    with contextlib.suppress(OSError):  # Windows opens no folders, some network disks sync none; each file was synced itself
        place = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)
