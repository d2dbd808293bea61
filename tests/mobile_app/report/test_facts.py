from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.report_quality import number_text
from mobile_app.report.evidence import FactKind
from tests.mobile_app.report.spoken import facts_of


def numbers(text: str) -> list[str]:
    return [number_text(fact) for fact in facts_of(text) if fact.kind is FactKind.NUMBER and not fact.is_retracted]


def texts(kind: FactKind, text: str) -> list[str]:
    return [fact.text for fact in facts_of(text) if fact.kind is kind]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The pressure is two point five bar.", ["2.5 bar"]),
        ("It is 20mm thick.", ["20 mm"]),
        ("About 2 to 3 millimeters.", ["2-3 mm"]),
        ("Between 5 and 6 kPa.", ["5-6 kPa"]),
        ("Blood pressure one hundred and twenty over eighty.", ["120/80"]),
        ("It reads minus five degrees celsius.", ["-5 °C"]),
        ("Three bolts are loose.", ["3"]),
        ("Pump three runs at 1,450 rpm.", ["1450 rpm"]),
        ("圧力は二点五バールです。", ["2.5 bar"]),
        ("体温は三十六度八分です。", ["36.8 °"]),
        ("厚さは１２．５ミリです。", ["12.5 mm"]),
        ("ボルトが二本緩い。", ["2 本"]),
        ("一部に錆があり、十分に締めた。", []),
        ("三号機を点検した。", []),
    ],
)
def test_a_number_is_found_with_its_unit(text: str, expected: list[str]) -> None:
    assert numbers(text) == expected


def test_a_number_that_was_corrected_is_marked_not_lost() -> None:
    found = [fact for fact in facts_of("It is two bar, sorry, three bar.") if fact.kind is FactKind.NUMBER]
    assert [(fact.text, fact.is_retracted) for fact in found] == [("two bar", True), ("three bar", False)]


def test_two_numbers_without_a_correction_both_stand() -> None:
    assert numbers("It is two bar, then three bar.") == ["2 bar", "3 bar"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is at least 20 mm.", "at least"),
        ("It is about five bar.", "about"),
        ("厚さは20ミリ以上です。", "以上"),
        ("厚さは約20ミリです。", "約"),
        ("It is 20 mm.", ""),
    ],
)
def test_what_limits_a_number_is_kept_with_it(text: str, expected: str) -> None:
    (number,) = [fact for fact in facts_of(text) if fact.kind is FactKind.NUMBER]
    assert number.qualifier == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No leaks.", ["No"]),
        ("It isn't loose.", ["n't"]),
        ("Valve no. 3 is open.", []),
        ("It is not only loud.", []),
        ("異常なし。", ["なし"]),
        ("漏れはありません。", ["ません"]),
        ("漏れているかもしれません。", []),
        ("交換しなければならない。", []),
        ("二本しかない。", []),
    ],
)
def test_a_denial_is_found_and_what_looks_like_one_is_not(text: str, expected: list[str]) -> None:
    assert texts(FactKind.NEGATION, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Flange P-101 and pump three.", ["P-101", "pump three"]),
        ("No. 3 valve, breaker twelve.", ["No. 3", "breaker twelve"]),
        ("三号機とポンプ2。", ["三号機", "ポンプ2"]),
        ("The panel has 20 mm of dust.", []),
    ],
)
def test_names_of_parts_are_no_numbers(text: str, expected: list[str]) -> None:
    assert texts(FactKind.IDENTIFIER, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Ask Dave Miller to come.", ["Dave Miller"]), ("Dr. Sato said so.", ["Sato"]), ("田中さんに頼む。", ["田中"]), ("Ask Monday.", [])],
)
def test_names_of_people_are_found_where_names_stand(text: str, expected: list[str]) -> None:
    assert texts(FactKind.NAME, text) == expected


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("ab 0123456789.,-/:点二十時半ポない。ANo'")), max_size=80), st.sampled_from(["en", "ja"]))
def test_the_words_of_every_fact_stand_where_it_says(text: str, language: str) -> None:
    from tests.mobile_app.report.spoken import transcript

    said = transcript(text, language=language).text
    assert all(said[fact.span.start : fact.span.end] == fact.text != "" for fact in facts_of(text, language=language))


def test_facts_of_a_long_note_are_found_in_time_that_grows_with_it() -> None:
    n_sentences = 4000
    found = facts_of("Pump 3 reads 2.5 bar at 9 a.m. on Friday. " * n_sentences)
    assert len([fact for fact in found if fact.kind is FactKind.NUMBER]) == n_sentences


_REPEATED = ["one ", "1 ", "1,", "point ", "一", "十", "no ", "ない", "five to ", "and a half ", "Aa ", "漢", ".", "1時"]


@pytest.mark.parametrize("unit", _REPEATED)
def test_a_long_note_that_says_one_thing_over_and_over_is_read_to_its_end(unit: str) -> None:
    """A pattern or a loop that goes back to the start for every word would take hours here."""
    facts_of(unit * (60_000 // len(unit)))
