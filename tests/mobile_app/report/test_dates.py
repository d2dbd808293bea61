from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobile_app.report.english_dates import english_dates
from mobile_app.report.japanese_dates import japanese_dates

MONDAY = date(2026, 11, 30)
_MONTHS = "January February March April May June July August September October November December".split()


@given(st.dates(date(2000, 1, 1), date(2099, 12, 31)))
def test_a_full_date_is_read_as_itself_in_both_languages(day: date) -> None:
    spoken = f"{_MONTHS[day.month - 1]} {day.day}, {day.year}"
    assert [fact.normal for fact in english_dates(f"due {spoken}.", None)] == [day.isoformat()]
    assert [fact.normal for fact in japanese_dates(f"{day.year}年{day.month}月{day.day}日まで", None)] == [day.isoformat()]


@given(st.dates(date(2020, 1, 1), date(2035, 12, 31)), st.integers(0, 6))
def test_a_weekday_is_the_first_such_day_after_the_note(day: date, weekday: int) -> None:
    name = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()[weekday]
    (english,) = english_dates(f"by {name}", day)
    (japanese,) = japanese_dates(f"{'月火水木金土日'[weekday]}曜日まで", day)
    found = date.fromisoformat(english.normal)
    assert found.weekday() == weekday and 1 <= (found - day).days <= 7
    assert japanese.normal == english.normal


@given(st.integers(0, 23), st.integers(0, 59))
def test_a_time_in_digits_is_read_as_itself(hour: int, minute: int) -> None:
    assert [fact.normal for fact in english_dates(f"at {hour}:{minute:02d}", None)] == [f"{hour:02d}:{minute:02d}"]
    assert [fact.normal for fact in japanese_dates(f"{hour}時{minute}分", None)] == [f"{hour:02d}:{minute:02d}"]


@given(st.text(max_size=120))
def test_no_text_breaks_the_readers(text: str) -> None:
    for fact in [*english_dates(text, MONDAY), *japanese_dates(text, MONDAY)]:
        assert text[fact.span.start : fact.span.end] == fact.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the third of March", ["2027-03-03"]),
        ("next Friday at half past ten", ["2026-12-11", "10:30"]),
        ("within two days", ["2026-12-02"]),
        ("at ten thirty.", ["10:30"]),
        ("quarter to nine p.m.", ["20:45"]),
        ("12 p.m. and 12 a.m.", ["12:00", "00:00"]),
        ("1430 hours", ["14:30"]),
        ("the end of the month", ["2026-11-30"]),
        ("twenty-first of December twenty twenty-six", ["2026-12-21"]),
        ("at ten bar", []),
        ("30 February", []),
    ],
)
def test_ways_to_say_when_in_english(text: str, expected: list[str]) -> None:
    assert [fact.normal for fact in english_dates(text, MONDAY)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("十二時半", ["12:30"]),
        ("午後三時十五分", ["15:15"]),
        ("令和八年十二月一日", ["2026-12-01"]),
        ("来週の月曜", ["2026-12-07"]),
        ("明後日", ["2026-12-02"]),
        ("二日以内", ["2026-12-02"]),
        ("今月中", ["2026-11-30"]),
        ("夕方5時", ["17:00"]),
        ("三時間", []),
        ("二月三十日", []),
    ],
)
def test_ways_to_say_when_in_japanese(text: str, expected: list[str]) -> None:
    assert [fact.normal for fact in japanese_dates(text, MONDAY)] == expected


def test_without_the_day_of_the_note_a_relative_date_stays_as_said() -> None:
    assert [(fact.text, fact.normal) for fact in english_dates("tomorrow", None)] == [("tomorrow", "")]
    assert [(fact.text, fact.normal) for fact in english_dates("March 3", None)] == [("March 3", "--03-03")]


def test_a_date_with_two_readings_gets_neither() -> None:
    assert [fact.normal for fact in english_dates("3/4/2026, 13/4/2026", None)] == ["", "2026-04-13"]


def test_a_day_no_calendar_reaches_stays_as_said() -> None:
    from datetime import date

    from mobile_app.report.calendar_rules import in_days, month_end, weekday_after

    last = date(9999, 12, 31)
    assert [weekday_after(5, last), weekday_after(0, last, week="next"), in_days(1, last), month_end(last, n_later=1), month_end(last)] == [
        ""
    ] * 5
    assert month_end(date(2026, 11, 30), n_later=1) == "2026-12-31"
