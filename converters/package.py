"""Publishing bundles: killed at any instant, OUT holds either no bundle of a name or a whole one.

OUT/NAME/                      a published bundle: files first, manifest last, everything fsynced, then one rename
OUT/.refused/NAME/             a bundle that failed a check, with report.json
OUT/.building/NAME.<pid>/      work of a live process, or a dead one's leftover (then nobody holds NAME.lock)
OUT/.building/NAME.old/        a bundle on its way out during --force; put back if the new one never arrived
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from converters.lock import hold, try_hold
from converters.stages import record_files
from toolkit.errors import ToolkitError, UsageError
from toolkit.manifest import MANIFEST_NAME, Manifest

_NO_SUCH_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)
BUILDING, REFUSED, REPORT_NAME = ".building", ".refused", "report.json"


class OutputFolder:
    """The folder that bundles are published into. Safe to use from several processes at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._building = path / BUILDING
        self._made: list[Path] = []
        self._is_closed = False

    def prepare(self) -> None:
        """Make the folder, prove that it can be written to, and clean up after dead processes.

        Raises:
            OSError: It cannot be made or written to.
            UsageError: The path is a file, or no folder can be made of that name.
        """
        self._is_closed = False
        try:
            if self.path.exists() and not self.path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "it is a file", str(self.path))
            self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            with hold(self._building / f"probe.{os.getpid()}.lock"):
                for name in {path.name.rpartition(".")[0] for path in self._building.iterdir()}:
                    self._sweep_if_dead(name)
        except OSError as error:
            if error.errno not in _NO_SUCH_PATH:
                raise
            why = f"{error.filename or self.path}: {error.strerror}"
            raise UsageError(f"{self.path} cannot hold bundles", why=why, fix="give another folder to --out") from error

    def tidy(self) -> None:
        """Remove what this run made and left empty; a thread that an interrupt left behind makes nothing after this."""
        self._is_closed = True
        for folder in (self._building, *self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _sweep_if_dead(self, name: str) -> None:
        with try_hold(self._lock(name)) as was_free:
            if was_free:
                self._sweep(name)

    def _sweep(self, name: str) -> None:
        """Put back or remove what a dead process left of one name; its lock must be held."""
        old = self._building / f"{name}.old"
        if old.is_dir() and not (self.path / name).exists():
            os.rename(old, self.path / name)
        for path in self._building.iterdir():
            if path.is_dir() and path.name.rpartition(".")[0] == name:
                shutil.rmtree(path, ignore_errors=True)

    def _lock(self, name: str) -> Path:
        return self._building / f"{name}.lock"

    @contextlib.contextmanager
    def building(self, name: str, *, on_wait: Callable[[], None] | None = None) -> Iterator[Path]:
        """An empty folder to build one bundle in, on the same filesystem as OUT. Only one process builds a name at a time.

        Whatever is left in it at the end is removed.

        Raises:
            InterruptedError: `tidy` was called: the run is over.
        """
        if self._is_closed:
            raise InterruptedError("the conversion is over")
        with hold(self._lock(name), on_wait=on_wait):
            self._sweep(name)
            folder = self._building / f"{name}.{os.getpid()}"
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def require_free(self, name: str, *, force: bool) -> None:
        """Refuse to overwrite.

        Raises:
            UsageError: The name is taken by a bundle and `force` is false, or by something that is no bundle.
        """
        place = self.path / name
        if not place.exists() and not place.is_symlink():
            return
        is_bundle = (place / MANIFEST_NAME).is_file() and not place.is_symlink()
        if not is_bundle and not (place.is_dir() and not any(place.iterdir())):
            raise UsageError(
                f"{place} is in the way", why="it is not a bundle, so it is not overwritten", fix="move it away, or give another --out"
            )
        if is_bundle and not force:
            raise UsageError(
                f"{place} exists and holds another conversion",
                why="it was made from another checkpoint, recipe, context length or tool version, or was not verified like this",
                fix="replace it with --force, or give another --out",
            )

    def publish(self, folder: Path, name: str, *, force: bool) -> Path:
        """Move a sealed folder to OUT/NAME. Its lock must be held (inside `building`).

        Raises:
            UsageError: As `require_free`.
        """
        self.require_free(name, force=force)
        place, old = self.path / name, self._building / f"{name}.old"
        if place.is_dir():
            os.rename(place, old)
            sync_folder(self._building)
        try:
            os.rename(folder, place)
        except BaseException:
            if old.is_dir():
                os.rename(old, place)
            raise
        sync_folder(self.path)
        if old.is_dir():  # under another name first: a half removed one must never be put back
            _discard(old, self._building / f"{name}.replaced")
        return place

    def refuse(self, folder: Path, name: str) -> Path:
        """Move a sealed folder to OUT/.refused/NAME, in place of an earlier one. Its lock must be held."""
        place = self.path / REFUSED / name
        place.parent.mkdir(exist_ok=True)
        if place.exists():
            _discard(place, self._building / f"{name}.replaced")
        os.rename(folder, place)
        sync_folder(place.parent)
        return place


def _discard(path: Path, on_the_way: Path) -> None:
    os.rename(path, on_the_way)
    shutil.rmtree(on_the_way, ignore_errors=True)


def seal(folder: Path, manifest: Manifest, *, report: dict[str, Any] | None = None) -> Manifest:
    """Hash and fsync every file of a bundle, then write its manifest, last and atomically.

    Args:
        folder: The assembled bundle.
        manifest: Everything but `files`.
        report: Why the bundle was refused; written beside the files.

    Returns:
        The manifest as written.

    Raises:
        ToolkitError: The entry file is missing, or the bundle holds a link.
        FormatError: A field of the manifest says something no reader accepts.
        OSError: The disk is full or failed.
    """
    if report is not None:
        (folder / REPORT_NAME).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for path in folder.rglob("*"):
        if path.is_file():
            _sync(path, os.O_RDONLY)
    try:
        files = record_files(folder)
    except ValueError as error:
        raise ToolkitError(
            f"{manifest.name} cannot be packaged", why=str(error), fix="report it: a target must copy, never link"
        ) from error
    if manifest.entry not in {record.path for record in files}:
        raise ToolkitError(f"{manifest.name} cannot be packaged", why=f"its entry file {manifest.entry!r} was not written", fix="report it")
    sealed = replace(manifest, files=files)
    text = sealed.to_json()
    Manifest.from_json(text)  # what a runtime would refuse is not published
    unfinished = folder / f"{MANIFEST_NAME}.unfinished"
    unfinished.write_text(text, encoding="utf-8")
    _sync(unfinished, os.O_RDONLY)
    os.rename(unfinished, folder / MANIFEST_NAME)
    for path in (*(path for path in folder.rglob("*") if path.is_dir()), folder):
        sync_folder(path)
    return sealed


def sync_folder(path: Path) -> None:
    """Make renames inside a folder survive a power cut."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
