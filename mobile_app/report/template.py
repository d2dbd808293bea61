"""Templates: which sections a job's report has, in which order, and which words and units belong to the job."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mobile_app.report.evidence import Tag
from toolkit.errors import FormatError, UsageError

FOLDER = Path(__file__).with_name("templates")
SECTIONS = ("summary", "findings", "measurements", "actions", "questions", "not_placed")
MAX_BYTES, MAX_WORDS, MAX_WORD = 64 * 2**10, 500, 60
_FIX = 'see docs/formats/report.md, "Templates"'


@dataclass(frozen=True)
class Section:
    """One section: which field of the report it shows, under which title in each language."""

    shows: str
    titles: Mapping[str, str]


@dataclass(frozen=True)
class Template:
    """A job's report.

    Args:
        name: What the report records.
        titles: Language -> the report's heading.
        sections: In order. `not_placed` is always among them: what was said is never left out.
        nouns: Things that are numbered in this job: bed 4, span 2.
        words: Tag -> words that speak for it.
        units: Name -> further spellings.
    """

    name: str
    titles: Mapping[str, str]
    sections: tuple[Section, ...]
    nouns: tuple[str, ...] = ()
    words: Mapping[Tag, tuple[str, ...]] = field(default_factory=dict)
    units: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def built_in_templates() -> tuple[str, ...]:
    """Names that `load_template` knows."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load_template(name: str) -> Template:
    """A built-in template by name, or one from a TOML file.

    Raises:
        UsageError: There is neither.
        FormatError: The file is no template; the text says which key.
    """
    known = built_in_templates()
    path = FOLDER / f"{name}.toml" if name in known else Path(name)
    if not path.is_file():
        raise UsageError(f"there is no template {name}", why=f"built in are {', '.join(known)}", fix="give one of these, or a TOML file")
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES} bytes")
        return _read(tomllib.loads(raw.decode("utf-8")))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path.name} is no report template", why=str(error)[:200], fix=_FIX) from error
    except OSError as error:
        raise FormatError(f"{path.name} cannot be read", why=error.strerror or str(error), fix="check the file") from error


def _read(table: dict[str, Any]) -> Template:
    if unknown := set(table) - {"name", "title", "sections", "nouns", "words", "units"}:
        raise ValueError(f"it has an unknown key {min(unknown)!r}")
    name = table.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_WORD:
        raise ValueError("`name` must be a short text")
    sections = table.get("sections")
    if not isinstance(sections, list) or not sections:
        raise ValueError("`sections` must be a list of tables")
    shown = tuple(_section(section) for section in sections)
    if len({section.shows for section in shown}) < len(shown):
        raise ValueError("a section is listed twice")
    if "not_placed" not in {section.shows for section in shown}:
        raise ValueError("the section `not_placed` is missing: what was said is never left out")
    words = _lists(table, "words")
    if unknown := set(words) - set(Tag):
        raise ValueError(f"words.{min(unknown)} is no tag; tags are {', '.join(Tag)}")
    tagged = {Tag(tag): found for tag, found in words.items()}
    return Template(
        name, _titles(table.get("title"), "title"), shown, _texts(table.get("nouns", []), "nouns"), tagged, _lists(table, "units")
    )


def _section(table: Any) -> Section:
    shows = table.get("shows") if isinstance(table, dict) else None
    if shows not in SECTIONS:
        raise ValueError(f"a section shows {shows!r}; it can show {', '.join(SECTIONS)}")
    return Section(shows, _titles(table.get("title", {}), f"title of {shows}"))


def _titles(table: Any, key: str) -> Mapping[str, str]:
    if not isinstance(table, dict) or not all(isinstance(text, str) and 1 <= len(text) <= MAX_WORD for text in table.values()):
        raise ValueError(f'`{key}` must be a table of short texts by language, like {{ en = "...", ja = "..." }}')
    return table


def _lists(table: dict[str, Any], key: str) -> dict[str, tuple[str, ...]]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise ValueError(f"`{key}` must be a table of lists")
    return {name: _texts(texts, f"{key}.{name}") for name, texts in found.items()}


def _texts(found: Any, key: str) -> tuple[str, ...]:
    if (
        not isinstance(found, list)
        or len(found) > MAX_WORDS
        or not all(isinstance(text, str) and 0 < len(text.strip()) <= MAX_WORD for text in found)
    ):
        raise ValueError(f"`{key}` must be a list of at most {MAX_WORDS} words of 1 to {MAX_WORD} characters")
    return tuple(text.strip() for text in found)
