"""SHA-256 of source files, remembered by device, inode, size and time of change so that a second read is free."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from toolkit.cache import cache_root, sha256_file
from toolkit.errors import FormatError
from toolkit.manifest import SourceRecord

_MAX_MEMORY_ENTRIES = 4096
_MAX_SUMS_BYTES = 2**20
_SHA256 = re.compile(r"[0-9a-f]{64}")


def hash_files(files: Mapping[str, Path]) -> dict[str, str]:
    """SHA-256 in hex of each named file.

    Raises:
        FormatError: A file cannot be read.
    """
    memory_path = cache_root() / "hashes.json"
    memory = _read_memory(memory_path)
    fresh: dict[str, str] = {}
    result: dict[str, str] = {}
    for name, path in files.items():
        try:
            key = _key(path)
            result[name] = memory.get(key) or fresh.setdefault(key, sha256_file(path))
        except OSError as error:
            raise FormatError(f"{name} cannot be read", why=error.strerror or str(error), fix=f"check {path}") from error
    if fresh:
        _write_memory(memory_path, memory | fresh)
    return result


def content_hash(hashes: Mapping[str, str]) -> str:
    """One SHA-256 over `name hash` lines in order of name."""
    lines = "".join(f"{name} {hashes[name]}\n" for name in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()


def _key(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"


def _read_memory(path: Path) -> dict[str, str]:
    """What was hashed before; a damaged memory is an empty one."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return {k: v for k, v in data.items() if isinstance(v, str) and len(v) == 64} if isinstance(data, dict) else {}


def _write_memory(path: Path, memory: Mapping[str, str]) -> None:
    """Remember the newest entries. A folder that cannot be written costs only the time to hash again."""
    kept = dict(list(memory.items())[-_MAX_MEMORY_ENTRIES:])
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(kept), "utf-8")
        os.replace(part, path)
    except OSError:
        with suppress(OSError):
            part.unlink()


def check_stated_hashes(folder: Path, files: Mapping[str, Path], hashes: Mapping[str, str], source: SourceRecord | None) -> None:
    """Compare file hashes with every hash the source itself carries; flipped weights show nowhere else.

    Looked at: what the fetcher recorded, `SHA256SUMS` and `NAME.sha256` beside the files, and the names of the blobs a
    Hugging Face cache links to.

    Raises:
        FormatError: A file does not have the hash stated for it.
    """
    for name, path in files.items():
        for where, stated in _stated(folder, name, path, source):
            if stated != hashes[name]:
                raise FormatError(
                    f"{name} is not the file that was published",
                    why=f"its SHA-256 is {hashes[name][:16]}..., {where} says {stated[:16]}...",
                    fix="download it again",
                )


def _stated(folder: Path, name: str, path: Path, source: SourceRecord | None) -> Iterator[tuple[str, str]]:
    if source is not None and name in source.sha256:
        yield "its source", source.sha256[name]
    for list_path in (folder / "SHA256SUMS", folder / f"{name}.sha256"):
        for stated, listed in _read_sums(list_path):
            if listed in (name, ""):
                yield list_path.name, stated
    if path.is_symlink() and _SHA256.fullmatch(path.resolve().name):
        yield "the cache", path.resolve().name


def _read_sums(path: Path) -> list[tuple[str, str]]:
    """(hash, file name) pairs of a sha256sum listing; a lone hash has the name ''."""
    try:
        if path.stat().st_size > _MAX_SUMS_BYTES:
            return []
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    parts = [line.split(maxsplit=1) for line in lines]
    return [(p[0].lower(), p[1].lstrip("*").strip() if len(p) > 1 else "") for p in parts if p and _SHA256.fullmatch(p[0].lower())]
