"""JSON read from files that others wrote: bounded in size, free of repeated keys, and an object at the top."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toolkit.errors import FormatError
from toolkit.json_depth import check_json_depth
from toolkit.units import format_bytes


def read_json_object(path: Path, *, max_bytes: int) -> dict[str, Any]:
    """The object in `path`.

    Raises:
        FormatError: The file is missing, larger than `max_bytes`, no JSON, repeats a key, or is no object.
    """
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise damaged_json(path, f"it has {format_bytes(size)}; {format_bytes(max_bytes)} are allowed")
        return parse_json_object(path.read_bytes(), path)
    except OSError as error:
        raise FormatError(
            f"{path.name} cannot be read", why=error.strerror or str(error), fix=f"the folder {path.parent} must hold it; download it again"
        ) from error


def parse_json_object(content: bytes, path: Path) -> dict[str, Any]:
    """Parse the bytes of `path`. Raises FormatError as `read_json_object` does."""
    try:
        text = content.decode("utf-8")
        check_json_depth(text)
        data = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise damaged_json(path, str(error).splitlines()[0][:200] or "it is empty") from error
    if not isinstance(data, dict):
        raise damaged_json(path, "it does not hold an object")
    return data


def damaged_json(path: Path, why: str) -> FormatError:
    """The error for a JSON file that cannot be used."""
    return FormatError(f"{path.name} is not sound", why=why, fix="download the checkpoint again")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)[:80]!r} appears twice")
    return data
