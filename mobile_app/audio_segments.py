"""A recording while it is made: append-only files, on the disk before two seconds have passed, whatever happens to the app.

FOLDER/000000.pcm, 000001.pcm, ...   16-bit samples, little end first, one channel, 16 kHz; a new file every 30 seconds
Nothing is ever written twice, so there is nothing that a kill could leave half changed: at worst a last sample is cut.
"""

from __future__ import annotations

import os
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from mobile_app.whole_file import sync_folder, whole_file
from toolkit.cache import FULL_ERRNOS
from toolkit.errors import BudgetError, ToolkitError, UsageError

RATE, SAMPLE_BYTES = 16_000, 2
BYTES_PER_S = RATE * SAMPLE_BYTES
SYNC_S, SEGMENT_S = 0.5, 30
_BLOCK_BYTES = 2**20


class SegmentWriter:
    """Takes sound as it comes from a microphone. Starts behind what is there already, so a stopped recording can go on.

    Args:
        folder: The note's own; made if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)
            found = segment_files(folder)
            self._index = int(found[-1].stem) + 1 if found else 0
            self._file, self._n_bytes = self._next_file(), 0
        except OSError as error:
            raise _unwritable(folder, error, 0.0) from error
        self._n_unsynced, self._synced_at = 0, time.monotonic()

    def write(self, block: bytes) -> None:
        """Append samples; at least twice a second of sound or time what was written is forced to the disk.

        Raises:
            UsageError: The recording was closed.
            BudgetError: The disk is full. What was recorded stays.
            ToolkitError: The disk cannot be written to.
        """
        if self._file < 0:
            raise UsageError("the recording is closed", why="sound came after its end", fix="begin a new recording")
        try:
            left = memoryview(block)
            while left:
                left = left[os.write(self._file, left) :]
            self._n_bytes += len(block)
            self._n_unsynced += len(block)
            if self._n_unsynced >= SYNC_S * BYTES_PER_S or time.monotonic() - self._synced_at >= SYNC_S:
                self._sync()
            if self._n_bytes >= SEGMENT_S * BYTES_PER_S:
                self._rotate()
        except OSError as error:
            raise _unwritable(self._folder, error, recorded_seconds(self._folder)) from error

    def close(self) -> None:
        """Force everything to the disk. May be called twice."""
        if self._file >= 0:
            file, self._file = self._file, -1
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _sync(self) -> None:
        os.fsync(self._file)
        self._n_unsynced, self._synced_at = 0, time.monotonic()

    def _rotate(self) -> None:
        self._sync()
        os.close(self._file)
        self._file = -1
        self._index += 1
        self._file, self._n_bytes = self._next_file(), 0

    def _next_file(self) -> int:
        file = os.open(self._folder / f"{self._index:06d}.pcm", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        sync_folder(self._folder)
        return file


def segment_files(folder: Path) -> list[Path]:
    """The files of a recording, in order."""
    return sorted(path for path in folder.glob("*.pcm") if path.stem.isdigit()) if folder.is_dir() else []


def recorded_seconds(folder: Path) -> float:
    """How much sound a folder holds."""
    return sum(path.stat().st_size // SAMPLE_BYTES for path in segment_files(folder)) / RATE


def read_blocks(folder: Path) -> Iterator[bytes]:
    """The sound of a recording, whole samples only, a few seconds at a time."""
    for path in segment_files(folder):
        left = path.stat().st_size // SAMPLE_BYTES * SAMPLE_BYTES
        with path.open("rb") as stream:
            while left and (block := stream.read(min(left, _BLOCK_BYTES))):
                left -= len(block)
                yield block


def write_wav(folder: Path, path: Path) -> float:
    """The recording as one WAV file, moved into place whole; returns its seconds."""
    try:
        with whole_file(path) as work, wave.open(str(work), "wb") as stream:
            stream.setnchannels(1)
            stream.setsampwidth(SAMPLE_BYTES)
            stream.setframerate(RATE)
            for block in read_blocks(folder):
                stream.writeframes(block)
    except OSError as error:
        raise _unwritable(path.parent, error, recorded_seconds(folder)) from error
    return recorded_seconds(folder)


def _unwritable(folder: Path, error: OSError, seconds: float) -> ToolkitError:
    kept = f"{error.strerror or error}; {seconds:.1f} s of sound are kept"
    if error.errno in FULL_ERRNOS:
        return BudgetError("the recording stopped: the disk is full", why=kept, fix="free some space, then go on recording")
    return ToolkitError(f"the recording cannot be written to {folder}", why=kept, fix="check the disk, then go on recording")
