from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobile_app.report.folded import fold
from mobile_app.report.japanese_numerals import kanji_numbers, kanji_value
from mobile_app.report.number import digit_numbers, finish

_DIGITS = "〇一二三四五六七八九"


def written(value: int) -> str:
    """An integer in kanji, below one hundred million."""
    if value == 0:
        return "〇"
    high, low = divmod(value, 10**4)
    text = (written(high) + "万") if high else ""
    for scale, sign in ((1000, "千"), (100, "百"), (10, "十")):
        digit, low = divmod(low, scale)
        text += ("" if digit == 1 else _DIGITS[digit]) + sign if digit else ""
    return text + (_DIGITS[low] if low else "")


@given(st.integers(0, 10**8 - 1))
def test_a_number_in_kanji_is_read_as_itself(value: int) -> None:
    assert kanji_value(written(value)) == value


@given(st.integers(0, 9999), st.text("0123456789", min_size=1, max_size=5))
def test_decimals_in_kanji_follow_the_point(whole: int, digits: str) -> None:
    text = f"{written(whole)}点{''.join(_DIGITS[int(digit)] for digit in digits)}"
    assert [number.value for number in kanji_numbers(f"値は{text}です")] == [Decimal(f"{whole}.{digits}")]


@given(st.integers(0, 10**9), st.integers(0, 999))
def test_full_width_digits_are_read_as_plain_ones(whole: int, decimals: int) -> None:
    plain = f"{whole}.{decimals}"
    wide = "".join(chr(ord(char) + 0xFEE0) for char in plain)
    assert [number.value for number in digit_numbers(fold(f"値は{wide}です"))] == [Decimal(plain)]


@given(st.text(max_size=200))
def test_folding_moves_no_character(text: str) -> None:
    assert len(fold(text)) == len(text)


@pytest.mark.parametrize("word", ["一部に錆", "一応確認", "十分です", "唯一の", "三菱製", "一般に"])
def test_kanji_inside_another_word_are_no_number(word: str) -> None:
    assert kanji_numbers(word) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3万", "30000"), ("2万5千", "25000"), ("2点5", "2.5"), ("1,200", "1200"), ("マイナス5", "-5"), ("2 point 5", "2.5"), ("-5", "-5")],
)
def test_ways_to_write_a_number(text: str, expected: str) -> None:
    assert [finish(text, number).value for number in digit_numbers(text)] == [Decimal(expected)]


def test_digits_of_a_part_name_are_no_number() -> None:
    assert digit_numbers("P-101 and V3") == []
