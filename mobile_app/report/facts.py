"""What code finds in a transcript without any model: numbers, dates, times, names of parts and people, denials."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import date

from mobile_app.report.english_dates import english_dates
from mobile_app.report.english_numerals import ONES, TENS, english_numbers
from mobile_app.report.evidence import Fact, FactKind, Sentence, Span
from mobile_app.report.folded import fold
from mobile_app.report.japanese_dates import japanese_dates
from mobile_app.report.quantities import quantity_facts
from mobile_app.report.span_set import SpanSet
from mobile_app.report.units import Units
from mobile_app.report.words import Words

_CODE = re.compile(r"(?<![A-Za-z0-9])[A-Z]{1,5}(?:-[A-Z]{1,3})?-?[0-9]{1,6}(?:-[0-9]{1,4})?[A-Z]?(?![A-Za-z0-9.])(?!\s?%)")
_KANJI_OR_DIGITS = r"[0-9]+|[〇一二三四五六七八九十百]{1,5}"
_SPOKEN = "|".join([*ONES, *TENS])
_NUMBERED = re.compile(r"\b[Nn]o(?:\.\s?|\s)[0-9]{1,6}(?![0-9.]*[0-9])")


def find_facts(text: str, sentences: Iterable[Sentence], words: Words, units: Units, recorded_on: date | None = None) -> tuple[Fact, ...]:
    """Every fact of a transcript in order; a fact lies inside one sentence, and its text is the transcript's.

    Args:
        text: The transcript's text.
        sentences: Its sentences.
        words: The language's.
        units: The units that are known.
        recorded_on: The day of the note, by which `tomorrow` gets a date.
    """
    folded = fold(text)
    dates = japanese_dates(folded, recorded_on) if words.language == "ja" else english_dates(folded, recorded_on)
    dated = SpanSet(fact.span for fact in dates)
    identifiers = [fact for fact in _identifiers(folded, words, units) if not dated.meets(fact.span)]
    counted = SpanSet(fact.span for fact in [*dates, *identifiers] if not _is_counted(fact))
    numbers = quantity_facts(folded, counted, words, units)
    found = [*dates, *identifiers, *numbers, *_negations(folded, words), *_names(folded, words)]
    spans = SpanSet(sentence.span for sentence in sentences)
    inside = [replace(fact, text=text[fact.span.start : fact.span.end]) for fact in found if spans.holder(fact.span) is not None]
    return tuple(_with_retractions(folded, sorted(inside, key=lambda fact: (fact.span.start, fact.span.end)), words))


def _is_counted(fact: Fact) -> bool:
    """Whether a date also says a number that a reader may ask for: `within two days`."""
    return fact.kind is FactKind.DATE and bool(
        re.match(r"(?:within|in)\b|[0-9〇一二三四五六七八九十]+(?:日|週間)", fact.text, re.IGNORECASE)
    )


def _identifiers(folded: str, words: Words, units: Units) -> list[Fact]:
    """Names of parts: `pump 3`, `valve number two`, `P-101`, 三号機, ポンプ3."""
    spans = [Span(*match.span()) for match in _CODE.finditer(folded) if units.by_spelling.get(match.group()) is None]
    for match in _noun_pattern(words).finditer(folded):
        if units.behind(folded, match.end()) is None:
            spans.append(_whole_number(folded, match))
    spans += [Span(*match.span()) for match in _NUMBERED.finditer(folded)]
    if words.identifier_ends:
        ends = "|".join(re.escape(end) for end in words.identifier_ends)
        spans += [Span(*match.span()) for match in re.finditer(rf"(?:第|[A-Z])?(?:{_KANJI_OR_DIGITS})(?:{ends})", folded)]
    taken = SpanSet()
    kept = [span for span in sorted(spans, key=lambda span: (span.start, -span.end)) if taken.add(span)]
    return [Fact(FactKind.IDENTIFIER, span, folded[span.start : span.end]) for span in kept]


def _noun_pattern(words: Words) -> re.Pattern[str]:
    nouns = "|".join(re.escape(noun) for noun in sorted(words.identifier_nouns, key=len, reverse=True))
    if words.language == "ja":
        return re.compile(rf"(?:{nouns})(?P<id>(?:{_KANJI_OR_DIGITS}|[A-Z])(?![A-Za-z0-9.]))")
    number = rf"(?:number |no\.? ?|#)?(?P<id>[0-9]+[A-Za-z]?|(?:{_SPOKEN})(?:[ -](?:{_SPOKEN}|oh))*|[A-Z])"
    return re.compile(rf"\b(?i:{nouns})[ ](?i:number |no\.? ?|#)?{number}(?![A-Za-z0-9]|\.[0-9]|%)")


def _whole_number(folded: str, match: re.Match[str]) -> Span:
    """`pump three` ends where its number does: in `bed two one forty over ninety` the second number is another one."""
    numbers = english_numbers(match["id"].lower(), hundreds=False) if match["id"].isalpha() and len(match["id"]) > 1 else []
    return Span(match.start(), match.start("id") + numbers[0].span.end) if numbers else Span(*match.span())


def _negations(folded: str, words: Words) -> list[Fact]:
    return [Fact(FactKind.NEGATION, Span(*match.span()), match.group()) for match in words.negations.finditer(folded)]


def _names(folded: str, words: Words) -> list[Fact]:
    spans: set[tuple[int, int]] = set()
    for pattern in words.names:
        for match in pattern.finditer(folded):
            if not set(match["name"].lower().split()) & words.not_names:
                spans.add(match.span("name"))
    return [Fact(FactKind.NAME, Span(*span), folded[slice(*span)]) for span in sorted(spans)]


def _with_retractions(folded: str, facts: list[Fact], words: Words) -> list[Fact]:
    """Marks what the speaker took back: `two bar, sorry, two point five bar`."""
    kinds = (FactKind.NUMBER, FactKind.DATE, FactKind.TIME, FactKind.IDENTIFIER)
    found = list(facts)
    for kind in kinds:
        places = [index for index, fact in enumerate(found) if fact.kind is kind]
        for left, right in zip(places, places[1:], strict=False):
            between = folded[found[left].span.end : found[right].span.start]
            same_unit = found[left].unit in ("", found[right].unit) or not found[right].unit
            if len(between) <= 40 and same_unit and words.corrections.search(between):
                found[left] = replace(found[left], is_retracted=True)
    return found
