"""The type of a number found in a text, and how numbers in digits are read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from mobile_app.report.evidence import Span

# More digits than this are a serial number or noise; nobody measures with them.
MAX_DIGITS = 15
_DIGITS = re.compile(r"(?<![A-Za-z0-9_.])(?<![A-Za-z]-)(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?")
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "万": 10**4, "千": 1000, "百": 100, "億": 10**8}
_SCALE = re.compile(r"\s*(hundred|thousand|million)\b|([万千百億])", re.IGNORECASE)
# `2 point 5` and `2点5`, as speech models write a spoken decimal point now and then.
_POINT = re.compile(r"(?:\s+point\s+|点)([0-9]+)(?![0-9])", re.IGNORECASE)
_HALF = re.compile(r"\s+and\s+a\s+half\b", re.IGNORECASE)
_SIGN = re.compile(r"(?:(?:^|(?<=[\s(=:、。]))-|\b(?:minus|negative)\s+|マイナス\s?)$", re.IGNORECASE)


@dataclass(frozen=True)
class Number:
    """A number and where it stands. `is_spelled`: in words or kanji, which may also be part of another word."""

    span: Span
    value: Decimal
    is_spelled: bool = False


def digit_numbers(folded: str) -> list[Number]:
    """Numbers in digits: 2.5, 1,200, 3万, 2万5千, 2 point 5. Digits behind letters belong to names of parts."""
    found: list[Number] = []
    at = 0
    while match := _DIGITS.search(folded, at):
        value, at = Decimal(match.group().replace(",", "")), match.end()
        if point := _POINT.match(folded, at):
            value, at = Decimal(f"{value}.{point.group(1)}") if value == value.to_integral_value() else value, point.end()
        value, at = _scaled(folded, value, at)
        if sum(char.isdigit() for char in match.group()) <= MAX_DIGITS:
            found.append(Number(Span(match.start(), at), value))
    return found


def _scaled(folded: str, value: Decimal, at: int) -> tuple[Decimal, int]:
    match = _SCALE.match(folded, at)
    if match is None:
        return value, at
    value, at = value * _SCALES[(match.group(1) or match.group(2)).lower()], match.end()
    rest = re.compile(r"([0-9]+)([千百])?").match(folded, at) if match.group(2) else None
    if rest:
        value, at = value + int(rest.group(1)) * _SCALES.get(rest.group(2) or "", 1), rest.end()
    return value, at


def finish(folded: str, number: Number) -> Number:
    """A number with what stands around it: a sign before it, `and a half` after it."""
    span, value = number.span, number.value
    if half := _HALF.match(folded, span.end):
        span, value = Span(span.start, half.end()), value + Decimal("0.5")
    if sign := _SIGN.search(folded[max(0, span.start - 12) : span.start]):
        span, value = Span(span.start - len(sign.group()), span.end), -value
    return Number(span, value, number.is_spelled)
