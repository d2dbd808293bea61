from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobile_app.report.english_numerals import ONES, TENS, english_numbers
from mobile_app.report.number import finish

_ONES = list(ONES)
_TENS = {value: name for name, value in TENS.items()}


def spoken(value: int, *, with_and: bool) -> str:
    """An integer below a thousand million, as English says it."""
    if value < 20:
        return _ONES[value]
    if value < 100:
        return _TENS[value // 10 * 10] + (f"-{_ONES[value % 10]}" if value % 10 else "")
    for scale, name in ((10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if value >= scale:
            rest = value % scale
            joint = " and " if with_and and 0 < rest < 100 else " "
            return f"{spoken(value // scale, with_and=with_and)} {name}" + (joint + spoken(rest, with_and=with_and) if rest else "")
    raise AssertionError(value)


def values(text: str) -> list[Decimal]:
    return [finish(text, number).value for number in english_numbers(text)]


@given(st.integers(0, 10**9 - 1), st.booleans())
def test_a_spoken_integer_is_read_as_itself(value: int, with_and: bool) -> None:
    assert values(f"it reads {spoken(value, with_and=with_and)} bar") == [value]


@given(st.integers(0, 999), st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_decimals_are_read_digit_by_digit(whole: int, digits: list[int]) -> None:
    text = f"{spoken(whole, with_and=True)} point {' '.join(_ONES[digit] for digit in digits)}"
    assert values(text) == [Decimal(f"{whole}.{''.join(map(str, digits))}")]


@given(st.lists(st.integers(0, 9), min_size=2, max_size=8))
def test_digits_in_a_row_are_one_number(digits: list[int]) -> None:
    assert values(" ".join(_ONES[digit] for digit in digits)) == [int("".join(map(str, digits)))]


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader_and_spans_lie_inside_in_order(text: str) -> None:
    numbers = english_numbers(text)
    bounds = [bound for number in numbers for bound in (number.span.start, number.span.end)]
    assert bounds == sorted(bounds) and all(0 <= bound <= len(text) for bound in bounds)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("two and a half metres", ["2.5"]),
        ("half an inch", ["0.5"]),
        ("three quarters of an inch", ["0.75"]),
        ("minus twenty one point five", ["-21.5"]),
        ("a hundred volts", ["100"]),
        ("one point twenty five", ["1.25"]),
        ("four fifty", ["450"]),
        ("zero point oh five", ["0.05"]),
        ("three and four", ["3", "4"]),
        ("this one leaks, the other one is dry", []),
        ("one of the bolts", ["1"]),
        ("point taken", []),
        ("and oh", []),
    ],
)
def test_ways_to_say_a_number(text: str, expected: list[str]) -> None:
    assert values(text) == [Decimal(value) for value in expected]
