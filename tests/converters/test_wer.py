"""Word error rates, beside a slow and obvious edit distance."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converters.wer import ErrorCount, character_errors, edit_distance, word_errors, words

SHORT = st.lists(st.sampled_from("abc"), max_size=6)


def slow_distance(first: list[str], second: list[str]) -> int:
    @cache
    def distance(left: int, right: int) -> int:
        if left == 0 or right == 0:
            return left + right
        changed = distance(left - 1, right - 1) + (first[left - 1] != second[right - 1])
        return min(changed, distance(left - 1, right) + 1, distance(left, right - 1) + 1)

    return distance(len(first), len(second))


@given(SHORT, SHORT)
def test_the_edit_distance_is_the_recursive_one(first: list[str], second: list[str]) -> None:
    assert edit_distance(first, second) == slow_distance(first, second)


@given(SHORT, SHORT, SHORT)
def test_the_edit_distance_is_a_metric(first: list[str], second: list[str], third: list[str]) -> None:
    assert (edit_distance(first, second) == 0) == (first == second)
    assert edit_distance(first, second) == edit_distance(second, first)
    assert edit_distance(first, third) <= edit_distance(first, second) + edit_distance(second, third)


@pytest.mark.parametrize(
    ("said", "written", "errors"),
    [
        ("the pump leaks at the flange", "The pump leaks, at the flange.", 0),
        ("the pump leaks at the flange", "the pump leaks the flange", 1),
        ("the pump leaks", "the big pump leaks oil", 2),
        ("don\u2019t open valve 3", "don't open valve three", 1),
        ("", "thank you", 2),
        ("ｆｌａｎｇｅ 20\u2103", "flange 20\u00b0C", 0),
    ],
)
def test_errors_are_counted_in_words_without_case_and_punctuation(said: str, written: str, errors: int) -> None:
    assert word_errors(said, written).n_errors == errors


def test_japanese_is_counted_in_characters() -> None:
    count = character_errors("配管から水が漏れている。", "配管から水が漏れていた")
    assert (count.n_errors, count.n_reference) == (1, 11)


def test_rates_add_up_over_recordings_and_silence_has_none() -> None:
    total = word_errors("one two three four", "one two three") + word_errors("five six", "five six")
    assert total.rate == 1 / 6
    assert ErrorCount(0, 0).rate == 0
    assert ErrorCount(2, 0).rate == 1, "text where nothing was said is wrong however long it is"


def test_words_keep_an_apostrophe_inside_and_no_symbol() -> None:
    assert words("'Don't' — it's 3.5 mm!") == ["don't", "it's", "3", "5", "mm"]
