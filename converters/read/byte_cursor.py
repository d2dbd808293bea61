"""Reading a binary header by a stranger: every step proves that the bytes are there before it takes them."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.errors import FormatError


def damaged_file(path: Path, kind: str, why: str) -> FormatError:
    """The error for a binary file that cannot be what it says; `kind` as in "GGUF file"."""
    return FormatError(f"{path.name} is not a sound {kind}", why=why, fix="download it again and compare its SHA-256 with the publisher's")


@contextmanager
def mapped(path: Path, kind: str, *, least_bytes: int) -> Iterator[mmap.mmap]:
    """The bytes of a file of at least `least_bytes`, mapped: what is not looked at is not read.

    Raises:
        FormatError: It is shorter, or cannot be read.
    """
    try:
        file_bytes = path.stat().st_size
        if file_bytes < least_bytes:
            raise damaged_file(path, kind, f"it has {file_bytes} bytes, a header alone takes {least_bytes}")
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
    except OSError as error:
        raise FormatError(f"{path.name} cannot be read", why=error.strerror or str(error), fix=f"check that {path} exists") from error


class ByteCursor:
    """A position in a mapped file; numbers are little-endian.

    Args:
        path: For errors.
        kind: For errors, as in "GGUF file".
        data: The file's bytes.
        most_bytes: How far the header may reach; None for the whole file.
    """

    def __init__(self, path: Path, kind: str, data: mmap.mmap, *, most_bytes: int | None = None) -> None:
        self.path, self.kind, self.data, self.file_bytes = path, kind, data, len(data)
        self.position = 0
        self.limit = self.file_bytes if most_bytes is None else min(self.file_bytes, most_bytes)

    def fail(self, why: str) -> FormatError:
        """The error at this position, ready to raise."""
        return damaged_file(self.path, self.kind, f"{why} (at byte {self.position})")

    def skip(self, n_bytes: int) -> None:
        """Go on. Raises FormatError when so many bytes are not left."""
        if n_bytes > self.limit - self.position:
            where = "the end of the file" if self.limit == self.file_bytes else f"the {self.limit} bytes a header may take"
            raise self.fail(f"{n_bytes} more bytes run past {where}")
        self.position += n_bytes

    def take(self, n_bytes: int) -> bytes:
        """The next bytes."""
        self.skip(n_bytes)
        return self.data[self.position - n_bytes : self.position]

    def number(self, code: str, size: int) -> Any:
        """The next number, by its `struct` code and size in bytes."""
        return struct.unpack("<" + code, self.take(size))[0]
