"""Dates and times of day in Japanese: 三月四日, 来週の月曜, 明日, 二日以内, 午後三時十五分, 十二時半."""

from __future__ import annotations

import re
from datetime import date

from mobile_app.report.calendar_rules import clock, day_of, in_days, month_end, weekday_after
from mobile_app.report.date_rules import read_dates, read_digits, read_iso, rules
from mobile_app.report.evidence import Fact
from mobile_app.report.japanese_numerals import kanji_value

_N = "[0-9]{1,2}|[〇一二三四五六七八九十]{1,3}"
_ERA = r"(?P<era>令和|平成)(?P<era_year>元|[0-9]{1,2}|[一二三四五六七八九十]{1,3})"
_YEARS = rf"(?:(?:{_ERA}|(?P<year>20[0-9]{{2}}|二〇[〇一二三四五六七八九]{{2}}))年(?:の)?)?"
_ERAS = {"令和": 2018, "平成": 1988}
_DAYS = "月火水木金土日"
_WEEKS = {"来週": "next", "次週": "next", "翌週": "next", "今週": "this", "先週": "last"}
_RELATIVE = {"明後日": 2, "あさって": 2, "明日": 1, "あした": 1, "翌日": 1, "本日": 0, "今日": 0, "今朝": 0, "今晩": 0, "今夜": 0}
_RELATIVE |= {"昨日": -1, "昨夜": -1, "一昨日": -2, "おととい": -2}
_PM = ("午後", "夜", "夕方", "夕", "昼")
_AM = ("午前", "朝", "早朝", "深夜", "未明")


def _number(text: str) -> int:
    return 1 if text == "元" else int(text) if text.isascii() else int(kanji_value(text))


def _read_day(match: re.Match[str], recorded_on: date | None) -> str | None:
    year = _ERAS[match["era"]] + _number(match["era_year"]) if match["era"] else _number(match["year"]) if match["year"] else None
    return day_of(year, _number(match["month"]), _number(match["day"]), recorded_on)


def _read_day_alone(match: re.Match[str], recorded_on: date | None) -> str | None:
    """The next such day of a month: of this month if it is still to come."""
    day = _number(match["day"])
    if not 1 <= day <= 31:
        return None
    if recorded_on is None:
        return ""
    later = 0 if day >= recorded_on.day else 1
    year, month = divmod(recorded_on.year * 12 + recorded_on.month - 1 + later, 12)
    return day_of(year, month + 1, day, None) or ""


def _read_weekday(match: re.Match[str], recorded_on: date | None) -> str | None:
    return weekday_after(_DAYS.index(match["weekday"]), recorded_on, week=_WEEKS.get(match["week"] or "", ""))


def _read_relative(match: re.Match[str], recorded_on: date | None) -> str | None:
    return in_days(_RELATIVE[match.group()], recorded_on)


def _read_month_end(match: re.Match[str], recorded_on: date | None) -> str | None:
    return month_end(recorded_on, n_later=1 if "来月" in match.group() else 0)


def _read_week(match: re.Match[str], recorded_on: date | None) -> str | None:
    return weekday_after(4, recorded_on, week=_WEEKS[match["week"]]) if match["part"] == "中" else ""


def _read_within(match: re.Match[str], recorded_on: date | None) -> str | None:
    days = {"日": 1, "週間": 7}.get(match["period"])
    return in_days(days * _number(match["count"]), recorded_on) if days else ""


def _read_clock(match: re.Match[str], _: date | None) -> str | None:
    minute = 30 if match["minute"] == "半" else _number(match["minute"].rstrip("分")) if match["minute"] else 0
    part = match["half"] or ""
    return clock(_number(match["hour"]), minute, half="pm" if part in _PM else "am" if part in _AM else "")


def _read_noon(_: re.Match[str], __: date | None) -> str | None:
    return "12:00"


_DATES = rules(
    (r"(?<![0-9])(20[0-9]{2})[-/]([0-9]{1,2})[-/]([0-9]{1,2})(?![0-9])", read_iso),
    (rf"{_YEARS}(?<![0-9])(?P<month>{_N})月(?P<day>{_N})日(?!間)", _read_day),
    (rf"(?P<count>{_N})(?P<period>日|週間|[ヶか箇カヵ]月)(?:以内|後)", _read_within),
    (r"(?:(?P<week>来週|次週|翌週|今週|先週)の?|次の)?(?P<weekday>[月火水木金土日])曜(?:日)?", _read_weekday),
    (r"(?:来月末|今月末|月末|来月中|今月中)", _read_month_end),
    (r"(?P<week>来週|今週|翌週)(?P<part>中|末)?", _read_week),
    ("|".join(_RELATIVE), _read_relative),
    (r"(?:来月|今月|年内|年末|年度末|来年)", lambda match, day: ""),
    (rf"(?<![0-9月])(?P<day>{_N})日(?=まで|に|の|、|。|付|午|朝)", _read_day_alone),
)
_TIMES = rules(
    (
        rf"(?P<half>午前|午後|早朝|朝|夕方|夕|夜|昼|深夜|未明)?の?(?<![0-9])(?P<hour>{_N})時(?!間)(?P<minute>半|(?:[0-9]{{1,2}}|[一二三四五六七八九十]{{1,3}})分)?",
        _read_clock,
    ),
    (r"(?<![0-9:])([01]?[0-9]|2[0-3]):([0-5][0-9])(?![0-9:])", read_digits),
    (r"正午", _read_noon),
)


def japanese_dates(folded: str, recorded_on: date | None) -> list[Fact]:
    """Dates and times, see `read_dates`."""
    return read_dates(folded, recorded_on, _DATES, _TIMES)
