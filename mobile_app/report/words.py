"""The words by which rules read a language: `words_en.toml`, `words_ja.toml`, and what a template adds to them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from mobile_app.report.evidence import Severity, Tag
from mobile_app.report.folded import fold

LANGUAGES = ("en", "ja")
# What a template's own word adds to a tag: as much as the strongest built-in cue.
TEMPLATE_WEIGHT = 5
STATEMENT = "statement"


@dataclass(frozen=True)
class Cue:
    """A pattern and how much it speaks for a tag."""

    pattern: re.Pattern[str]
    weight: int


@dataclass(frozen=True)
class Words:
    """One language's patterns, compiled."""

    language: str
    fillers: re.Pattern[str]
    corrections: re.Pattern[str]
    negations: re.Pattern[str]
    identifier_nouns: frozenset[str]
    identifier_ends: tuple[str, ...]
    small_words: re.Pattern[str]
    names: tuple[re.Pattern[str], ...]
    not_names: frozenset[str]
    owners: tuple[re.Pattern[str], ...]
    sites: tuple[re.Pattern[str], ...]
    site_ends: re.Pattern[str] | None
    what_ends: re.Pattern[str]
    qualifiers: re.Pattern[str]
    qualifiers_behind: re.Pattern[str] | None
    tags: Mapping[Tag, tuple[Cue, ...]]
    statements: tuple[Cue, ...]
    severities: Mapping[Severity, tuple[re.Pattern[str], ...]]

    def with_added(self, nouns: Iterable[str], tagged: Mapping[Tag, tuple[str, ...]]) -> Words:
        """These words and a template's: literal words, never patterns, because a template may come from anywhere."""
        tags = dict(self.tags)
        for tag, words in tagged.items():
            tags[tag] = (*tags.get(tag, ()), *(Cue(_compile(_whole(word)), TEMPLATE_WEIGHT) for word in words))
        return replace(self, identifier_nouns=self.identifier_nouns | {fold(noun).lower() for noun in nouns}, tags=tags)

    def speak(self, quoted: str) -> str:
        """Words of the transcript without fillers and double spaces: the one way in which copied wording may differ.

        Nothing else is changed: see docs/formats/report.md, "What rewording counts as faithful".
        """
        found = " ".join(quoted.split())
        before = None
        while before != found:
            before = found
            found = _without(fold(found), found, self.fillers)
        return found.strip(" ,、")


def _without(folded: str, text: str, pattern: re.Pattern[str]) -> str:
    kept, at = [], 0
    for match in pattern.finditer(folded):
        kept.append(text[at : match.start()])
        at = match.end()
    return " ".join("".join([*kept, text[at:]]).split())


def _whole(word: str) -> str:
    """A pattern of a literal word: a whole one where words have spaces between them."""
    escaped = re.escape(fold(word))
    return rf"\b{escaped}\b" if word.isascii() else escaped


@lru_cache(maxsize=4)
def load_words(language: str) -> Words:
    """The words of a language; English for one without a file."""
    name = language if language in LANGUAGES else "en"
    table = tomllib.loads(Path(__file__).with_name(f"words_{name}.toml").read_text("utf-8"))
    severities = {Severity(level): tuple(_compile(pattern) for pattern in cues) for level, cues in table["severity"].items()}
    return Words(
        language=name,
        fillers=_one_of(table["fillers"]),
        corrections=_one_of(table["corrections"]),
        negations=_one_of(table["negations"]),
        identifier_nouns=frozenset(table["identifier_nouns"]),
        identifier_ends=tuple(sorted(table.get("identifier_ends", ()), key=len, reverse=True)),
        small_words=_compile("|".join(_whole(word) for word in sorted(table["small_words"], key=len, reverse=True))),
        names=tuple(re.compile(_filled(pattern, table)) for pattern in table["names"]),
        not_names=frozenset(table["not_names"]),
        owners=tuple(_compile(_filled(pattern, table)) for pattern in table["owners"]),
        sites=tuple(_compile(pattern) for pattern in table["sites"]),
        site_ends=_one_of(table["site_ends"]) if table["site_ends"] else None,
        what_ends=_one_of(table["what_ends"]),
        qualifiers=_one_of(table["qualifiers"]),
        qualifiers_behind=_one_of(table["qualifiers_behind"]) if "qualifiers_behind" in table else None,
        tags={Tag(tag): _cues(cues, table) for tag, cues in table["tags"].items() if tag != STATEMENT},
        statements=_cues(table["tags"][STATEMENT], table),
        severities=severities,
    )


def _cues(cues: Mapping[str, Any], table: Mapping[str, Any]) -> tuple[Cue, ...]:
    return tuple(Cue(_compile(_filled(pattern, table)), int(weight)) for pattern, weight in cues.items())


def _filled(pattern: str, table: Mapping[str, Any]) -> str:
    """A pattern with the lists it names in braces: {verbs}, {noun_verbs}, {roles}, {does}."""
    for name in ("noun_verbs", "verbs", "roles", "does"):
        pattern = pattern.replace(f"{{{name}}}", str(table.get(name, "")))
    return pattern


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _one_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return _compile("|".join(f"(?:{pattern})" for pattern in patterns))
