"""Words of the report itself in the note's language, and how times and values are shown."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

from mobile_app.report.evidence import Fact, Quote
from mobile_app.report.template import Section, Template


@lru_cache(maxsize=4)
def load_labels(language: str) -> Mapping[str, str]:
    """The labels of a language; English for one without."""
    table: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("labels.toml").read_text("utf-8"))
    return table.get(language, table["en"])


def heading(template: Template, language: str) -> str:
    """What a report of this template is called."""
    return template.titles.get(language) or load_labels(language)["title"]


def section_title(section: Section, language: str) -> str:
    """The title of a section: the template's, or the usual one."""
    return section.titles.get(language) or load_labels(language)[section.shows]


def clock(seconds: float) -> str:
    """Minutes and seconds with tenths, like 01:02.5."""
    tenths = round(seconds * 10)
    return f"{tenths // 600:02d}:{tenths // 10 % 60:02d}.{tenths % 10}"


def times(quote: Quote) -> str:
    """When a quote was said, like `00:06.9 - 00:13.6`; empty where nobody knows."""
    if quote.start_s is None or quote.end_s is None:
        return ""
    return f"{clock(quote.start_s)} - {clock(quote.end_s)}"


def amount(fact: Fact) -> str:
    """A number as read: `2.5 bar`, `2 - 3 mm`, `120/80`, `at least 20 mm`."""
    value = _plain(fact.value)
    if fact.second_value is not None:
        value += (" - " if fact.relation == "to" else "/") + _plain(fact.second_value)
    shown = f"{value} {fact.unit}".rstrip()
    if not fact.qualifier:
        return shown
    return f"{fact.qualifier} {shown}" if fact.qualifier.isascii() else f"{shown} {fact.qualifier}"


def _plain(value: Decimal | None) -> str:
    return "" if value is None else f"{value:f}"
