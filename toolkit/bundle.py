"""A bundle on disk: checked by size and SHA-256 before any native parser sees a byte of it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from toolkit.cache import cache_root, sha256_file
from toolkit.errors import FormatError, UsageError
from toolkit.manifest import FileRecord, Manifest
from toolkit.manifest_reader import load_manifest
from toolkit.units import format_bytes

SPEECH_MODEL_TYPE = "whisper"
SPEECH_TARGET = "litert"  # the one whose speech bundles `toolkit transcribe` opens
_SETTLED_NS = 100_000_000  # a file changed this lately could change again without its mtime moving
_AGAIN = "copy the bundle again from where it came from, or convert it again (convert SOURCE --to TARGET --force)"


@dataclass(frozen=True)
class Bundle:
    """A bundle: the folder and what its manifest states. From `open` its files are checked, from `unchecked` not yet."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, full_check: bool = False, advance: Callable[[float], None] | None = None) -> Bundle:
        """Check a bundle folder and return it.

        Every file must be there with the right size. Its SHA-256 is computed once and remembered, in the user's cache, by
        the file's device, inode, size and times; a file that differs in any of them is hashed again.

        Args:
            path: The folder that `convert` wrote.
            full_check: Hash every file, whatever is remembered.
            advance: Gets the bytes of each piece hashed.

        Raises:
            UsageError: `path` is empty.
            FormatError: The folder is no bundle, or a file is missing or differs from the manifest; the text names it.
        """
        bundle = cls.unchecked(path)
        bundle.check(full_check=full_check, advance=advance)
        return bundle

    @classmethod
    def unchecked(cls, path: str | os.PathLike[str]) -> Bundle:
        """A bundle by its manifest alone, for what reads no weights: planning.

        Raises:
            UsageError: `path` is empty.
            FormatError: The folder is no bundle.
        """
        if os.fspath(path) == "":  # to the system that is the current directory, to no user
            raise UsageError("no bundle is named", why="the argument is empty", fix="give the folder that `convert` wrote")
        folder = Path(path)
        if not folder.is_dir():
            raise FormatError(
                f"there is no bundle at {folder}",
                why="it is a file, not a folder" if folder.exists() else "no such folder",
                fix="give the folder that `convert` wrote, like bundles/NAME-litert-int8",
            )
        return cls(folder, load_manifest(folder))

    def require_prompts(self) -> None:
        """Refuse a model that takes no prompts.

        Raises:
            UsageError: It writes down recordings.
        """
        if self.is_speech:
            way_out = f"toolkit transcribe {self.path} FILE"
            if self.manifest.target != SPEECH_TARGET:
                way_out = f"convert SOURCE --to {SPEECH_TARGET}, which toolkit transcribe opens"
            raise UsageError(
                f"{self.name} is a speech model",
                why="it takes a recording, no prompt",
                fix=f"{way_out}, or run a bundle of a language model",
            )

    def check(self, *, full_check: bool = False, advance: Callable[[float], None] | None = None) -> None:
        """Check every file against the manifest, as `open` does.

        Raises:
            FormatError: A file is missing or differs from the manifest; the text names it.
        """
        memory = {} if full_check else _load_memory(self)
        seen = {record.path: _check_file(self, record, memory.get(record.path), advance) for record in self.manifest.files}
        if seen != memory:
            _remember(self, seen)

    @property
    def name(self) -> str:
        """The folder's name, like `gemma-3-270m-litert-int8`."""
        return self.path.resolve().name

    @property
    def is_speech(self) -> bool:
        """Whether it writes down recordings instead of answering prompts."""
        return self.manifest.spec.get("model_type") == SPEECH_MODEL_TYPE

    @property
    def entry_path(self) -> Path:
        """The file an engine opens."""
        return self.path / self.manifest.entry

    @property
    def bytes(self) -> int:
        """Size of all native files."""
        return sum(record.bytes for record in self.manifest.files)

    @property
    def content_hash(self) -> str:
        """SHA-256 in hex over the files' paths and hashes: equal exactly when the native files are."""
        digest = hashlib.sha256()
        for record in sorted(self.manifest.files, key=lambda record: record.path):
            digest.update(f"{record.path}\0{record.sha256}\n".encode())
        return digest.hexdigest()


_Identity = list[int]


def _check_file(bundle: Bundle, record: FileRecord, remembered: _Identity | None, advance: Callable[[float], None] | None) -> _Identity:
    """Check one file; returns what identifies the very file that was hashed, or [] when it is too fresh to be trusted later."""
    path = bundle.path / record.path
    before = _identity(bundle, record, path)
    if before == remembered:
        return before
    started_ns = time.time_ns()
    try:
        actual = sha256_file(path, advance)
    except OSError as error:
        raise _refused(bundle, record, f"it cannot be read: {error.strerror or error}") from error
    if actual != record.sha256:
        raise _refused(bundle, record, f"its SHA-256 is {actual[:16]}..., the manifest states {record.sha256[:16]}...")
    if _identity(bundle, record, path) != before:
        raise _refused(bundle, record, "it was changed while it was being checked")
    return before if started_ns - max(before[-2:]) > _SETTLED_NS else []


def _identity(bundle: Bundle, record: FileRecord, path: Path) -> _Identity:
    try:
        status = path.stat()
    except OSError as error:
        raise _refused(bundle, record, f"it is missing ({error.strerror or error})") from error
    if not stat.S_ISREG(status.st_mode):
        raise _refused(bundle, record, "it is not a regular file")
    if status.st_size != record.bytes:
        raise _refused(bundle, record, f"it has {status.st_size} bytes, the manifest states {record.bytes} ({format_bytes(record.bytes)})")
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _refused(bundle: Bundle, record: FileRecord, why: str) -> FormatError:
    return FormatError(f"{bundle.path / record.path} is not the file its manifest describes", why=why, fix=_AGAIN)


def _memory_path(bundle: Bundle) -> Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(bundle.path)) + b"\0" + bundle.content_hash.encode())
    return cache_root() / "checked" / f"{name.hexdigest()[:32]}.json"


def _load_memory(bundle: Bundle) -> dict[str, _Identity]:
    """What was checked before; nothing at all when the note is missing or unreadable."""
    try:
        memory = json.loads(_memory_path(bundle).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return memory if isinstance(memory, dict) else {}


def _remember(bundle: Bundle, seen: dict[str, _Identity]) -> None:
    """Note what was checked. A cache that cannot be written only costs the next check its time."""
    path = _memory_path(bundle)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps({name: identity for name, identity in seen.items() if identity}), encoding="utf-8")
        os.replace(unfinished, path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
