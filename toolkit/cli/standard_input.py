"""Prompts that come on stdin: bounded, and refused in words when there is no stdin."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

from toolkit.errors import UsageError

MOST_CHARACTERS = 16 * 2**20  # far above any context; an endless line would fill the memory


def standard_input() -> TextIO:
    """stdin.

    Raises:
        UsageError: It is closed.
    """
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("there is no stdin to read prompts from", why="it is closed", fix="give the prompt as an argument, or pipe it in")
    return sys.stdin


def read_prompt() -> str:
    """All of stdin.

    Raises:
        UsageError: It is closed, no UTF-8 text, or longer than any prompt.
    """
    return _bounded(standard_input().read)


def read_line() -> str | None:
    """The next line without its end; None after the last.

    Raises:
        UsageError: See `read_prompt`.
    """
    line = _bounded(standard_input().readline)
    return line.removesuffix("\n") if line else None


def _bounded(read: Callable[[int], str]) -> str:
    try:
        text = read(MOST_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise UsageError("the prompt on stdin is not text", why=str(error), fix="pass it as UTF-8") from error
    if len(text) > MOST_CHARACTERS:
        raise UsageError("the prompt on stdin is too long", why=f"more than {MOST_CHARACTERS} characters", fix="pass a shorter one")
    return text
