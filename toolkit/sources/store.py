"""Fetched files on this disk, one folder for each set of files, named after the hash of their contents.

    <cache>/models/<name>-<12 hex of the key>/entry.json     what is there and where it came from
    <cache>/models/<name>-<12 hex of the key>/files/         the files themselves

A folder appears by one rename, whole. A file whose size changed, or whose inode or time changed and whose hash then
differs, makes its entry count as absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from toolkit.cache import cache_directory, cache_root, directory_bytes, remove_directory, sha256_file, write_error
from toolkit.manifest import FileRecord

_ENTRY_NAME = "entry.json"
_FILES = "files"


@dataclass(frozen=True)
class Entry:
    """One set of fetched files: its content key, the URI it came from, and the files with size and hash."""

    key: str
    uri: str
    directory: Path
    files: tuple[FileRecord, ...]
    fetched_at: str

    @property
    def path(self) -> Path:
        """The file itself when there is one, else the folder that holds them."""
        folder = self.directory / _FILES
        return folder / self.files[0].path if len(self.files) == 1 else folder

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def content_key(hashes: Mapping[str, str]) -> str:
    """SHA-256 over the sorted lines `sha256  name`: the same for the same files, wherever they came from."""
    lines = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(hashes.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def entries() -> list[Entry]:
    """Every readable entry, sorted by folder name; a damaged entry.json is passed over."""
    return [entry for folder in sorted((cache_root() / "models").glob("*/" + _ENTRY_NAME)) if (entry := _load(folder.parent))]


def find(*, key: str | None = None, uri: str | None = None) -> Entry | None:
    """The entry with this content key or this URI, if all its files are still what they were."""
    for entry in entries():
        if (entry.key == key or entry.uri == uri) and _is_intact(entry):
            return entry
    return None


def new_staging(label: str) -> Path:
    """An empty folder, on the disk of the store, to write files into before `publish`.

    The caller holds the lock for `label`: what a killed run left there is removed.
    """
    staging = cache_directory("models") / f".partial-{label}"
    try:
        if staging.exists():
            shutil.rmtree(staging)
        (staging / _FILES).mkdir(parents=True)
    except OSError as error:
        raise write_error(staging, error) from error
    return staging


def staged_file(staging: Path, name: str) -> Path:
    """Where a file called `name` goes inside a staging folder."""
    return staging / _FILES / name


def publish(staging: Path, uri: str, name: str, files: tuple[FileRecord, ...]) -> Entry:
    """Make a staging folder an entry with one rename; an entry with the same content takes the new files.

    Raises:
        BudgetError, ToolkitError: The disk is full, or not writable.
    """
    key = content_key({file.path: file.sha256 for file in files})
    directory = staging.parent / f"{name}-{key[:12]}"
    entry = Entry(key, uri, directory, files, datetime.now(UTC).isoformat(timespec="seconds"))
    stored = {**asdict(entry), "directory": directory.name, "stat": {file.path: _stat(staged_file(staging, file.path)) for file in files}}
    try:
        with (staging / _ENTRY_NAME).open("w", encoding="utf-8") as stream:
            stream.write(json.dumps(stored, indent=2, sort_keys=True) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        if directory.exists():
            remove_directory(directory)
        staging.rename(directory)
    except OSError as error:
        raise write_error(directory, error) from error
    return entry


def remove(entry: Entry) -> int:
    """Delete an entry and its files; returns the bytes freed."""
    return remove_directory(entry.directory)


def stored_bytes(entry: Entry) -> int:
    """Bytes the entry takes on the disk, its own record included."""
    return directory_bytes(entry.directory)


def _stat(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def _load(directory: Path) -> Entry | None:
    try:
        stored = json.loads((directory / _ENTRY_NAME).read_text("utf-8"))
        files = tuple(FileRecord(**file) for file in stored["files"])
        return Entry(stored["key"], stored["uri"], directory, files, stored["fetched_at"]) if files else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_intact(entry: Entry) -> bool:
    try:
        known = json.loads((entry.directory / _ENTRY_NAME).read_text("utf-8"))["stat"]
        for file in entry.files:
            path = entry.directory / _FILES / file.path
            now = _stat(path)
            if now[1] != file.bytes or (now != known[file.path] and sha256_file(path) != file.sha256):
                return False
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True
