"""Finished stages of a conversion, kept in the user's cache so that the next run, or the next recipe, starts from them.

One folder per checkpoint (by content hash), one subfolder per stage and key. A stage is built beside its place and
renamed into it with a journal of its files' hashes, so it is there whole or not at all; a damaged one is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.lock import SharedUse, hold
from converters.progress import Progress
from toolkit.cache import sha256_file
from toolkit.manifest import FileRecord

JOURNAL_NAME = "stage.json"


def key_of(*parts: Any) -> str:
    """SHA-256 of JSON data, the same for the same data on every machine."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def record_files(folder: Path) -> tuple[FileRecord, ...]:
    """Every file under a folder, sorted by path. Links are refused: they would point out of what was recorded.

    Raises:
        ValueError: The folder holds a symbolic link or a special file.
    """
    records = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ValueError(f"{path.relative_to(folder)} is neither a file nor a folder")
        if path.is_file():
            records.append(FileRecord(path.relative_to(folder).as_posix(), path.stat().st_size, sha256_file(path)))
    return tuple(records)


@dataclass(frozen=True)
class Stage:
    """One step whose result is worth keeping.

    Args:
        name: What the folder starts with: `hf`, `lowered-litert`, `quantized-litert-int8`.
        key: Hash of everything that decides the result; a different key is a different stage.
        title: What the user reads while it runs.
        build: Writes the result into an empty folder and returns its path inside it.
    """

    name: str
    key: str
    title: str
    build: Callable[[Path], Path]


class WorkFolder:
    """The finished stages of one checkpoint. Safe to use from several processes at once."""

    def __init__(self, root: Path, *, forget: Callable[[str], bool] | None = None) -> None:
        """Open, or make, a checkpoint's folder.

        Args:
            root: The folder, named after the checkpoint's content hash.
            forget: Chooses stages by folder name that an earlier run left and this one must not take over. They are
                removed only if no other process is using the folder.
        """
        self.root = root
        self._turns: dict[str, threading.Lock] = {}
        self._turns_lock = threading.Lock()
        self._done: dict[str, Path] = {}  # what this run has built or checked byte for byte
        self._use = SharedUse(root / "in-use", if_alone=lambda: self._clear(forget or (lambda name: False)))

    def folder(self, stage: Stage) -> Path:
        return self.root / f"{stage.name}-{stage.key[:16]}"

    def looks_finished(self, stage: Stage) -> bool:
        """Whether a stage has a journal: a free answer for estimates, `finished` is the one to rely on."""
        return (self.folder(stage) / JOURNAL_NAME).is_file()

    def finished(self, stage: Stage) -> Path | None:
        """The result of a stage if it is finished and every byte of it is as it was written; None otherwise."""
        folder = self.folder(stage)
        try:
            journal = json.loads((folder / JOURNAL_NAME).read_bytes())
            files = [FileRecord(**record) for record in journal["files"]]
            output = folder / journal["output"]
            is_sound = journal["key"] == stage.key and output.exists() and all(_is_sound(folder, record) for record in files)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return output if is_sound else None

    def run(self, stage: Stage, progress: Progress) -> Path:
        """The result of a stage, from the cache or built now. A second process waits for the first one's result.

        Whatever `build` raises is passed on, and nothing of the stage is left.
        """
        place = self.folder(stage)
        # Threads of this run take turns first, so that only another run is announced as one that is waited for.
        with self._turns_lock:
            turn = self._turns.setdefault(place.name, threading.Lock())
        with turn:
            return self._done[place.name] if place.name in self._done else self._run_alone(stage, place, progress)

    def _run_alone(self, stage: Stage, place: Path, progress: Progress) -> Path:
        with hold(place.with_name(place.name + ".lock"), on_wait=lambda: progress.note(f"waiting for another conversion: {stage.title}")):
            if (output := self.finished(stage)) is not None:
                progress.note(f"{stage.title}: done before, taken from the cache")
            else:
                for leftover in self.root.glob(f"{place.name}.*.building"):
                    _remove(leftover)
                _remove(place)
                output = self._build(stage, place, progress)
        self._done[place.name] = output
        return output

    def _build(self, stage: Stage, place: Path, progress: Progress) -> Path:
        # The process id keeps an orphan of a killed run, still writing, out of this run's folder.
        building = place.with_name(f"{place.name}.{os.getpid()}.building")
        building.mkdir(parents=True)
        try:
            with progress.stage(stage.title):
                output = stage.build(building).relative_to(building)
            records = [vars(record) for record in record_files(building)]
            journal = {"stage": stage.name, "key": stage.key, "output": output.as_posix(), "files": records}
            (building / JOURNAL_NAME).write_text(json.dumps(journal, indent=1), encoding="utf-8")
            os.rename(building, place)
        except BaseException:
            _remove(building)
            raise
        return place / output

    def leave(self, *, drop: Callable[[str], bool] | None = None) -> None:
        """Stop using the folder. Stages whose folder name `drop` chooses are removed, unless another process uses them."""
        self._use.leave(if_last=lambda: self._clear(drop or (lambda name: False)))

    def _clear(self, chosen: Callable[[str], bool]) -> None:
        """Remove chosen stages and what killed runs left; only while no other process uses the folder."""
        for path in self.root.iterdir():
            if path.suffix == ".lock":
                path.unlink(missing_ok=True)
            elif path.is_dir() and (path.suffix == ".building" or chosen(path.name)):
                _remove(path)


def _is_sound(folder: Path, record: FileRecord) -> bool:
    path = folder / record.path
    return path.stat().st_size == record.bytes and sha256_file(path) == record.sha256


def _remove(path: Path) -> None:
    """Remove a folder that may be half there. Its journal goes first, so that whatever remains counts as unfinished."""
    if path.is_dir():
        (path / JOURNAL_NAME).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
