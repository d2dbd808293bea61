"""Dates and times of day in English: the third of March, next Friday, within two days, half past ten, 9 a.m."""

from __future__ import annotations

import re
from datetime import date

from mobile_app.report.calendar_rules import WEEKDAYS, clock, day_of, in_days, month_end, weekday_after
from mobile_app.report.date_rules import read_dates, read_digits, read_iso, rules
from mobile_app.report.english_numerals import ONES, TENS, english_numbers
from mobile_app.report.evidence import Fact, FactKind, Span

_MONTHS = "january february march april may june july august september october november december".split()
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth".split()
_ORDINALS += "sixteenth seventeenth eighteenth nineteenth twentieth".split()
_ORDINAL_DAYS = {word: day for day, word in enumerate(_ORDINALS, 1)} | {f"twenty {_ORDINALS[day - 1]}": 20 + day for day in range(1, 10)}
_ORDINAL_DAYS |= {"thirtieth": 30, "thirty first": 31}
_DAY_WORDS = "|".join(sorted((word.replace(" ", "[ -]") for word in _ORDINAL_DAYS), key=len, reverse=True))
_DAY = rf"(?P<day>[0-9]{{1,2}}(?:st|nd|rd|th)?|{_DAY_WORDS})"
_MONTH = r"(?P<month>" + "|".join(f"{name[:3]}(?:{name[3:]})?" if name != "may" else name for name in _MONTHS) + r"|sept)\b\.?"
_YEAR = r"(?:,?\s+(?P<year>20[0-9]{2}|twenty[ -]twenty[ -](?:one|two|three|four|five|six|seven|eight|nine)))?"
_COUNT = r"(?P<count>[0-9]{1,3}|an?|" + "|".join([*ONES, *TENS]) + ")"
_PERIODS = {"day": 1, "week": 7, "month": 30}
_HOUR = r"(?P<hour>[0-9]{1,2}|" + "|".join(list(ONES)[1:13]) + ")"
_HALF_DAY = r"(?P<half>a\.?m\b\.?|p\.?m\b\.?)"
_MINUTES = (
    r"(?P<minute>(?:oh[ -])?(?:"
    + "|".join(list(ONES)[1:])
    + r")|(?:twenty|thirty|forty|fifty)(?:[ -](?:"
    + "|".join(list(ONES)[1:10])
    + "))?)"
)
_DAYTIMES = {"noon": "12:00", "midday": "12:00", "midnight": "00:00"}


def _number(words: str) -> int:
    words = words.lower()
    if words in ("a", "an"):
        return 1
    if words.isdigit():
        return int(words)
    found = english_numbers(words.replace("oh ", "").replace("oh-", ""))
    return int(found[0].value) if found else 0


def _day(words: str) -> int:
    digits = re.match("[0-9]+", words)
    return int(digits.group()) if digits else _ORDINAL_DAYS[words.lower().replace("-", " ")]


def _read_day(match: re.Match[str], recorded_on: date | None) -> str | None:
    month = next(index for index, name in enumerate(_MONTHS, 1) if name.startswith(match["month"][:3].lower()))
    year = match["year"]
    known = None if year is None else int(year) if year.isdigit() else 2000 + 20 + _number(re.split("[ -]", year)[-1])
    return day_of(known, month, _day(match["day"]), recorded_on)


def _read_slashes(match: re.Match[str], _: date | None) -> str | None:
    """3/4/2026 may be March or April: only what has one reading gets a date."""
    first, second, year = (int(match[index]) for index in (1, 2, 3))
    if first > 12:
        return day_of(year, second, first, None)
    if second > 12 or first == second:
        return day_of(year, first, second, None)
    return ""


def _read_weekday(match: re.Match[str], recorded_on: date | None) -> str | None:
    return weekday_after(WEEKDAYS.index(match["weekday"].lower()), recorded_on, week=(match["week"] or "").lower())


def _read_relative(match: re.Match[str], recorded_on: date | None) -> str | None:
    words = " ".join(match.group().lower().split())
    if "month" in words:
        return month_end(recorded_on, n_later=1 if "next" in words else 0) if "end of" in words else ""
    if "week" in words:
        return weekday_after(4, recorded_on, week="next" if "next" in words else "this") if "end of" in words else ""
    if "day after tomorrow" in words:
        return in_days(2, recorded_on)
    if "tomorrow" in words:
        return in_days(1, recorded_on)
    return in_days(-1, recorded_on) if "yesterday" in words or "last night" in words else in_days(0, recorded_on)


def _read_within(match: re.Match[str], recorded_on: date | None) -> str | None:
    return in_days(_number(match["count"]) * _PERIODS[match["period"].lower()], recorded_on) if match["period"].lower() != "month" else ""


def _half(match: re.Match[str]) -> str:
    return (match["half"] or "").lower().replace(".", "")


def _read_clock(match: re.Match[str], _: date | None) -> str | None:
    return clock(_number(match["hour"]), _number(match["minute"]) if match["minute"] else 0, half=_half(match))


def _read_past(match: re.Match[str], _: date | None) -> str | None:
    shift = {"half": 30, "quarter": 15}.get((match["shift"] or "").lower()) or _number(match["count"])
    minutes = 60 * _number(match["hour"]) + (shift if match["side"].lower() == "past" else -shift)
    return clock(minutes // 60 % 24, minutes % 60, half=_half(match))


def _read_daytime(match: re.Match[str], _: date | None) -> str | None:
    return _DAYTIMES[match.group().lower()]


_DATES = rules(
    (r"\b(20[0-9]{2})-([0-9]{1,2})-([0-9]{1,2})\b", read_iso),
    (r"\b([0-9]{1,2})/([0-9]{1,2})/(20[0-9]{2})\b", _read_slashes),
    (rf"\b(?:the\s+)?{_DAY}\s+(?:of\s+)?{_MONTH}{_YEAR}\b", _read_day),
    (rf"\b{_MONTH}\s+(?:the\s+)?{_DAY}\b{_YEAR}", _read_day),
    (rf"\b(?:(?P<week>next|this|last)\s+)?(?P<weekday>{'|'.join(WEEKDAYS)})\b", _read_weekday),
    (r"\b(?:the\s+)?day after tomorrow\b", _read_relative),
    (r"\b(?:the\s+)?end of (?:the |this |next )?(?:week|month|shift|day|year)\b", _read_relative),
    (
        r"\b(?:today|tonight|tomorrow|yesterday|last night|this (?:morning|afternoon|evening|week|month)|next (?:week|month|year|shift))\b",
        _read_relative,
    ),
    (rf"\b(?:within|in)\s+(?:the next\s+)?{_COUNT}\s+(?P<period>day|week|month)s?\b", _read_within),
)
_SHIFT = r"(?:(?P<shift>half|quarter)|(?P<count>[0-9]{1,2}|five|ten|twenty|twenty[ -]five) minutes)"
_SHORT = r"(?P<shift>)(?P<count>five|ten|twenty|twenty[ -]five)"
_NEXT = r"(?=\s*(?:[.,;?!](?![0-9])|$|\s(?:today|tomorrow|tonight|on|this|and|for|we|i|sharp|in the)\b))"
_TIMES = rules(
    (rf"\b{_SHIFT}\s+(?P<side>past|to)\s+{_HOUR}\b(?:\s*{_HALF_DAY})?", _read_past),
    # `five to ten` is a range of numbers unless a time is asked for
    (rf"\b(?:at|by|around|until|before|after|since)\s+{_SHORT}\s+(?P<side>past|to)\s+{_HOUR}(?P<half>){_NEXT}", _read_past),
    (rf"\b(?P<hour>[01]?[0-9]|2[0-3])[:.](?P<minute>[0-5][0-9])\s*{_HALF_DAY}", _read_clock),
    (r"\b(?P<hour>[01]?[0-9]|2[0-3]):(?P<minute>[0-5][0-9])\b(?P<half>)", _read_clock),
    (rf"\b{_HOUR}(?:\s+{_MINUTES})?\s*{_HALF_DAY}", _read_clock),
    (rf"\b{_HOUR}\s+o'? ?clock\b(?P<minute>)(?:\s*{_HALF_DAY})?", _read_clock),
    (r"\b([01][0-9]|2[0-3])([0-5][0-9])\s+hours\b", read_digits),
    (rf"\b(?:at|by|around|until|before|after|till|from|since)\s+{_HOUR}[ -]{_MINUTES}(?P<half>){_NEXT}", _read_clock),
    (rf"\b(?:at|by|until|before|after|till|from|since)\s+{_HOUR}(?P<minute>)(?P<half>){_NEXT}", _read_clock),
    (r"\b(?:noon|midday|midnight)\b", _read_daytime),
)
_LEADING = re.compile(r"(?:at|by|around|until|before|after|till|from|since)\s+", re.IGNORECASE)


def english_dates(folded: str, recorded_on: date | None) -> list[Fact]:
    """Dates and times, see `read_dates`."""
    return read_dates(folded, recorded_on, _DATES, _TIMES, said=_said)


def _said(kind: FactKind, match: re.Match[str]) -> Span:
    """A match without `by` or `at` before it, and without the full stop behind a time that ends a sentence."""
    lead = _LEADING.match(match.group())
    is_full_stop = match.group().endswith(".") and match.group().count(".") == 1 and kind is FactKind.TIME
    return Span(match.start() + (lead.end() if lead else 0), match.end() - is_full_stop)
