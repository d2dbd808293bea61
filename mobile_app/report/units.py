"""Units of measure as people say them, read from `units.toml`; a template may add its own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_UNITS_PATH = Path(__file__).with_name("units.toml")


@dataclass(frozen=True)
class Unit:
    """A unit found behind a number. `end` is where its words end."""

    name: str
    end: int
    is_counter: bool


@dataclass(frozen=True)
class Units:
    """Every spelling of every unit.

    Args:
        by_spelling: Lower case for words, as written for symbols -> name.
        counters: Names of units that count things.
    """

    by_spelling: Mapping[str, str]
    counters: frozenset[str]
    words: re.Pattern[str]
    symbols: re.Pattern[str]
    japanese: re.Pattern[str]

    def behind(self, folded: str, at: int) -> Unit | None:
        """The unit whose words follow a number that ends at `at`; the longest spelling wins."""
        found = [match for pattern in (self.words, self.symbols, self.japanese) if (match := pattern.match(folded, at))]
        if not found:
            return None
        match = max(found, key=lambda one: one.end())
        spelling = match.group("unit")
        name = self.by_spelling.get(spelling) or self.by_spelling[" ".join(spelling.lower().replace("-", " ").split())]
        return Unit(name, match.end(), name in self.counters)


def load_units(added: Mapping[str, tuple[str, ...]] | None = None) -> Units:
    """The built-in units, and `added`: name -> spellings of a template."""
    return _compiled(tuple(sorted((added or {}).items())))


@lru_cache(maxsize=8)
def _compiled(added: tuple[tuple[str, tuple[str, ...]], ...]) -> Units:
    table = tomllib.loads(_UNITS_PATH.read_text("utf-8"))["units"]
    english: dict[str, str] = {}
    symbols: dict[str, str] = {}
    japanese: dict[str, str] = {}
    for name, unit in table.items():
        english |= dict.fromkeys(unit.get("en", ()), name)
        symbols |= dict.fromkeys(unit["symbols"], name)
        japanese |= dict.fromkeys(unit.get("ja", ()), name)
    for name, spellings in added:
        for spelling in spellings:
            if spelling.isascii():
                english[spelling.lower()] = name
            else:
                japanese[spelling] = name
    return Units(
        by_spelling={**english, **symbols, **japanese},
        counters=frozenset(name for name, unit in table.items() if unit.get("is_counter")),
        words=re.compile(rf"[ -]{{0,2}}(?P<unit>{_any(english, gap='[ -]+')})(?![A-Za-z])", re.IGNORECASE),
        symbols=re.compile(rf" ?(?P<unit>{_any(symbols)})(?![A-Za-z0-9])"),
        japanese=re.compile(rf" ?(?P<unit>{_any(japanese)})"),
    )


def _any(spellings: Mapping[str, str], gap: str = " ") -> str:
    longest_first = sorted(spellings, key=len, reverse=True)
    return "|".join(re.escape(spelling).replace("\\ ", gap) for spelling in longest_first)
