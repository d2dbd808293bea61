"""Numbers with what belongs to them: unit, range, pair, what limits them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal

from mobile_app.report.english_numerals import english_numbers
from mobile_app.report.evidence import Fact, FactKind, Span
from mobile_app.report.japanese_numerals import kanji_numbers
from mobile_app.report.number import Number, digit_numbers, finish
from mobile_app.report.span_set import SpanSet
from mobile_app.report.units import Unit, Units
from mobile_app.report.words import Words

_RANGE = re.compile(r"\s*(?:to|-|~|〜|～|から)\s*", re.IGNORECASE)
_PAIR = re.compile(r"\s*(?:over|/|の|スラッシュ)\s*", re.IGNORECASE)
_TENTHS = re.compile(r"(?P<tenths>[0-9]|[一二三四五六七八九])分(?!間)")
_BETWEEN = re.compile(r"\bbetween\s+$", re.IGNORECASE)
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)
_CLOCK_UNITS = ("min", "h")
_QUALIFIER_REACH = 16
_KANJI_ALONE = re.compile(r"[〇一二三四五六七八九十百千万]{2,}")


@dataclass(frozen=True)
class Quantity:
    """A number and the unit behind it."""

    number: Number
    unit: Unit | None

    @property
    def span(self) -> Span:
        return Span(self.number.span.start, self.unit.end if self.unit else self.number.span.end)


def quantity_facts(folded: str, taken: SpanSet, words: Words, units: Units) -> list[Fact]:
    """Every number outside of `taken`, with its unit; ranges and pairs are one fact.

    Args:
        folded: The transcript, see `folded`.
        taken: Where dates, times and names of parts stand.
        words: The language's.
        units: The units that are known.
    """
    found: list[Quantity] = []
    for number in _numbers(folded, words.language):
        one = _with_unit(folded, number, units)
        is_inside = bool(found) and found[-1].span.meets(number.span)  # the tenths of the number before
        if not is_inside and not taken.meets(number.span) and _counts(folded, one):
            found.append(one)
    facts: list[Fact] = []
    at = 0
    while at < len(found):
        pair = _joined(folded, found[at], found[at + 1]) if at + 1 < len(found) else None
        at += 2 if pair else 1
        facts.append(_qualified(folded, pair or _fact(folded, found[at - 1]), words))
    return facts


def _numbers(folded: str, language: str) -> list[Number]:
    """Numbers in digits and in the language's own words, left to right, none twice."""
    spelled = kanji_numbers(folded) if language == "ja" else english_numbers(folded)
    digits = digit_numbers(folded)
    taken = SpanSet(number.span for number in digits)
    numbers = digits + [number for number in spelled if not taken.meets(number.span)]
    return [finish(folded, number) for number in sorted(numbers, key=lambda number: number.span.start)]


def _with_unit(folded: str, number: Number, units: Units) -> Quantity:
    unit = units.behind(folded, number.span.end)
    if unit and unit.name == "°" and (tenths := _TENTHS.match(folded, unit.end)):  # 三十六度八分: a temperature of 36.8
        digit = tenths["tenths"]
        value = number.value + Decimal("0.1") * (int(digit) if digit.isdecimal() else "〇一二三四五六七八九".index(digit))
        return Quantity(replace(number, value=value), replace(unit, end=tenths.end()))
    return Quantity(number, unit)


def _counts(folded: str, one: Quantity) -> bool:
    """Whether spelled signs are a number here: a lone kanji without a unit is part of a word."""
    said = folded[one.number.span.start : one.number.span.end]
    is_kanji = one.number.is_spelled and not said.isascii()
    return not is_kanji or one.unit is not None or "点" in said or bool(_KANJI_ALONE.fullmatch(said.removeprefix("マイナス")))


def _joined(folded: str, left: Quantity, right: Quantity) -> Fact | None:
    """`2 to 3 mm` and `120 over 80`: two numbers that are one statement."""
    start, end = left.span.end, right.number.span.start
    is_between = _BETWEEN.search(folded[max(0, left.number.span.start - 9) : left.number.span.start])
    if _RANGE.fullmatch(folded, start, end) or (is_between and _AND.fullmatch(folded, start, end)):
        relation = "to"
    elif _PAIR.fullmatch(folded, start, end) and left.unit is None:
        relation = "over"
    else:
        return None
    if left.unit and right.unit and left.unit.name != right.unit.name:
        return None
    second = right.number.value
    if relation == "to" and folded[start:end].strip() == "-" and second < 0:
        second = -second
    fact = _fact(folded, right if right.unit else left)
    span = Span(left.span.start, right.span.end)
    return replace(fact, span=span, text=folded[span.start : span.end], value=left.number.value, second_value=second, relation=relation)


def _fact(folded: str, one: Quantity) -> Fact:
    unit = one.unit
    return Fact(
        FactKind.NUMBER,
        one.span,
        folded[one.span.start : one.span.end],
        value=one.number.value,
        unit=unit.name if unit else "",
        is_measured=unit is not None and not unit.is_counter,
    )


def _qualified(folded: str, fact: Fact, words: Words) -> Fact:
    start, end = fact.span.start, fact.span.end
    before = words.qualifiers.search(folded[max(0, start - _QUALIFIER_REACH) : start].rstrip())
    behind = words.qualifiers_behind.search(folded[end : end + _QUALIFIER_REACH]) if words.qualifiers_behind else None
    if behind is not None:
        return replace(fact, qualifier=behind.group().strip())
    return replace(fact, qualifier=before.group().strip()) if before else fact
