"""How deep a JSON text nests, seen before it is parsed.

Python's parser recurses in C. It stops at the interpreter's recursion limit, but that limit belongs to the whole process and
some libraries raise it to millions; then a file of opening brackets ends the process instead of raising an error.
"""

from __future__ import annotations

import re

MAX_DEPTH = 64
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_NO_BRACKET = re.compile(r"[^\[\]{}]+")


def check_json_depth(text: str, *, most: int = MAX_DEPTH) -> None:
    """Refuse a text whose brackets, outside of strings, nest deeper than `most`.

    Raises:
        ValueError: They do.
    """
    depth = 0
    for bracket in _NO_BRACKET.sub("", _STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > most:
            raise ValueError(f"it nests more than {most} levels deep")
