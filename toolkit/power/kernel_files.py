"""Small files of the Linux kernel: each may be missing, forbidden, empty or nonsense, and a device may vanish while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_MOST_BYTES = 64 * 1024  # none of these files is longer; whatever stands in for one must not fill memory


def read_text(path: Path) -> str | None:
    """The file's text without surrounding white space; None where it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(_MOST_BYTES).decode("utf-8", errors="replace").strip()
    except (OSError, ValueError):  # a driver that has nothing to say answers with any errno
        return None


def read_integer(path: Path) -> int | None:
    """A whole number, or None. Longer than a 64-bit one is none: it would take Python long to read."""
    text = read_text(path)
    if text is None or not text or len(text) > 21:
        return None
    digits = text[1:] if text[0] in "+-" else text
    return int(text) if digits.isascii() and digits.isdigit() else None


def folders(path: Path, prefix: str = "") -> Iterator[Path]:
    """Folders below one (they are links in /sys/class), in the order of their names; none where it is missing."""
    try:
        found = sorted(folder for folder in path.iterdir() if folder.name.startswith(prefix))
    except OSError:
        return
    yield from (folder for folder in found if _is_folder(folder))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False
