"""Word error rate: how many words of a transcript must be changed, over the words that were said.

Source: the edit distance of Levenshtein (1966) over words; texts are compared without case and punctuation, as in OpenAI's
basic normalizer. For languages written without spaces the unit is the character.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ErrorCount:
    """Edits that turn what was said into what was written, and how many units were said."""

    n_errors: int
    n_reference: int

    def __add__(self, other: ErrorCount) -> ErrorCount:
        return ErrorCount(self.n_errors + other.n_errors, self.n_reference + other.n_reference)

    @property
    def rate(self) -> float:
        """Errors over the units said; may exceed 1 where more was written than said. Silence has a rate of 0 if nothing was written."""
        if self.n_reference == 0:
            return float(self.n_errors > 0)
        return self.n_errors / self.n_reference


def word_errors(said: str, written: str) -> ErrorCount:
    """Errors in words."""
    return _count(words(said), words(written))


def character_errors(said: str, written: str) -> ErrorCount:
    """Errors in characters, spaces left out."""
    return _count(list("".join(words(said))), list("".join(words(written))))


def words(text: str) -> list[str]:
    """The words of a text in lower case, compatibility forms unified, symbols and punctuation taken as spaces.

    An apostrophe inside a word stays: "don't" is one word.
    """
    folded = unicodedata.normalize("NFKC", text).lower().replace("\u2019", "'")
    kept = "".join(char if char == "'" or unicodedata.category(char)[0] in "LN" or _is_mark(char) else " " for char in folded)
    return [word for raw in kept.split() if (word := raw.strip("'"))]


def _is_mark(char: str) -> bool:
    return unicodedata.category(char)[0] == "M"


def _count(said: Sequence[str], written: Sequence[str]) -> ErrorCount:
    return ErrorCount(edit_distance(said, written), len(said))


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """The least number of units to insert, delete or replace; takes len(first) * len(second) steps."""
    row = list(range(len(second) + 1))
    for index, unit in enumerate(first, start=1):
        diagonal, row[0] = row[0], index
        for column, other in enumerate(second, start=1):
            diagonal, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, diagonal + (unit != other))
    return row[-1]
