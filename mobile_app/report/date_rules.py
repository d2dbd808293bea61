"""How dates and times of day are read in every language: rules in order, each a pattern and what its matches mean."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date

from mobile_app.report.calendar_rules import clock, day_of
from mobile_app.report.evidence import Fact, FactKind, Span
from mobile_app.report.span_set import SpanSet

# Gives the normal form, empty where it takes more than was said; None if the match is no date after all.
Reader = Callable[[re.Match[str], date | None], str | None]
Rules = tuple[tuple[re.Pattern[str], Reader], ...]


def rules(*pairs: tuple[str, Reader]) -> Rules:
    """The rules of a language, their letters in either case."""
    return tuple((re.compile(pattern, re.IGNORECASE), reader) for pattern, reader in pairs)


def read_iso(match: re.Match[str], _: date | None) -> str | None:
    """Year, month and day are the match's groups."""
    return day_of(int(match[1]), int(match[2]), int(match[3]), None)


def read_digits(match: re.Match[str], _: date | None) -> str | None:
    """Hour and minute are the match's groups."""
    return clock(int(match[1]), int(match[2]))


def whole_match(kind: FactKind, match: re.Match[str]) -> Span:
    """Where a date was said, if all of the match says it."""
    return Span(*match.span())


def read_dates(
    folded: str, recorded_on: date | None, dates: Rules, times: Rules, *, said: Callable[[FactKind, re.Match[str]], Span] = whole_match
) -> list[Fact]:
    """Dates and times; the first rule that reads a stretch of text has it, so the longest saying's rule comes first.

    Args:
        folded: The transcript, see `folded`.
        recorded_on: The day of the note.
        dates: Rules of dates.
        times: Rules of times of day.
        said: Which part of a match says the date.
    """
    found: list[Fact] = []
    taken = SpanSet()
    for kind, language_rules in ((FactKind.DATE, dates), (FactKind.TIME, times)):
        for pattern, reader in language_rules:
            for match in pattern.finditer(folded):
                span = said(kind, match)
                normal = reader(match, recorded_on)
                if normal is not None and taken.add(span):
                    found.append(Fact(kind, span, folded[span.start : span.end], normal=normal))
    return found
