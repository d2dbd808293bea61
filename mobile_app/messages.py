"""Refusals in the user's language: the three lines of a `ToolkitError`, with words a technician knows."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("messages.toml").read_text("utf-8"))


def user_language(asked: str | None = None) -> str:
    """The language to speak with the user: what was asked for, else the locale's, else English."""
    if asked is None:
        asked = next((value for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (value := os.environ.get(name))), "")
    return "ja" if asked.lower().partition("_")[0] in ("ja", "japanese") else "en"


def refusal(kind: type[ToolkitError], table: str, user: str, /, **values: object) -> ToolkitError:
    """An error of `messages.toml`, filled in.

    Args:
        kind: Its class, which decides the exit code.
        table: Its name there.
        user: The user's language, `en` or `ja`.
        values: What its texts name.
    """
    texts = _table()[user][table]
    what, why, fix = (texts[line].format_map(values) for line in ("what", "why", "fix"))
    return kind(what, why=why, fix=fix)


def no_file_why(path: Path) -> str:
    """Why a path that is no file cannot be read, in English."""
    return "it is a folder or a device, not a file" if path.exists() else "no such file"


def result_words(user: str) -> Mapping[str, str]:
    """Words for what a finished command says."""
    words: Mapping[str, str] = _table()[user]["result"]
    return words


def shown(error: ToolkitError, language: str) -> str:
    """The three lines, their labels in the user's language."""
    labels = _table()[language]
    lines = [error.what]
    if error.why:
        lines.append(f"  {labels['why']}: {error.why}")
    return "\n".join([*lines, f"  {labels['fix']}: {error.fix}"])
