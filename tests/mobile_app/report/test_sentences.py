from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobile_app.report.sentences import LONGEST_CHARS, split_sentences
from mobile_app.transcript import join_segments
from tests.mobile_app.report.spoken import transcript


def split(text: str) -> list[str]:
    return [sentence.text for sentence in split_sentences(join_segments([(text, 0.0, 5.0)]))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is 2.5 bar. It leaks.", ["It is 2.5 bar.", "It leaks."]),
        ("Dr. Sato came at 9 a.m. today. No. 3 is open.", ["Dr. Sato came at 9 a.m. today.", "No. 3 is open."]),
        ("It is at valve A. Then we left.", ["It is at valve A.", "Then we left."]),
        ("Is it no? No. Good.", ["Is it no?", "No.", "Good."]),
        ("圧力は正常です。漏れはありません。", ["圧力は正常です。", "漏れはありません。"]),
        ("圧力は正常です 漏れはありません", ["圧力は正常です", "漏れはありません"]),
        ("... ?", []),
    ],
)
def test_a_sentence_ends_where_a_listener_hears_its_end(text: str, expected: list[str]) -> None:
    assert split(text) == expected


def test_a_sentence_goes_on_over_the_end_of_a_segment() -> None:
    assert len(split_sentences(transcript("the pump is", "still leaking."))) == 1


def test_a_pause_ends_a_sentence_that_has_no_full_stop() -> None:
    spoken = join_segments([("the pump leaks", 0.0, 2.0), ("valve is open", 4.0, 6.0)])
    assert [sentence.text for sentence in split_sentences(spoken)] == ["the pump leaks", "valve is open"]


def test_lines_of_a_text_without_times_are_sentences() -> None:
    spoken = join_segments([("the pump leaks", None, None), ("valve is open", None, None)])
    assert len(split_sentences(spoken)) == 2


@given(st.lists(st.text(max_size=400), max_size=8))
def test_sentences_lie_in_order_and_lose_no_letter(parts: list[str]) -> None:
    spoken = transcript(*parts)
    sentences = split_sentences(spoken)
    kept = "".join(sentence.text for sentence in sentences)
    assert [char for char in kept if char.isalnum()] == [char for char in spoken.text if char.isalnum()]
    assert all(left.span.end <= right.span.start for left, right in zip(sentences, sentences[1:], strict=False))
    assert all(len(sentence.text) <= LONGEST_CHARS for sentence in sentences)
