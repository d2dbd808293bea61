"""What a spoken date means on the day it was spoken. Without that day a relative date stays as said."""

from __future__ import annotations

from datetime import date, timedelta

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def day_of(year: int | None, month: int, day: int, recorded_on: date | None) -> str | None:
    """ISO 8601 of a day: `--MM-DD` while the year is unknown; None for a day no calendar has.

    A day without its year is the one nearest to the recording, at most half a year before it.
    """
    try:
        if year is not None:
            return date(year, month, day).isoformat()
        if recorded_on is None:
            date(2024, month, day)  # a leap year: 29 February may be meant
            return f"--{month:02d}-{day:02d}"
        near = [made for offset in (-1, 0, 1) if (made := _made(recorded_on.year + offset, month, day))]
        return min(near, key=lambda made: abs((made - recorded_on).days)).isoformat() if near else None
    except ValueError:
        return None


def _made(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


def in_days(n_days: int, recorded_on: date | None) -> str:
    """The day so many days after the recording."""
    return moved(recorded_on, n_days)


def moved(start: date | None, n_days: int) -> str:
    """ISO 8601 of `start` and so many days; empty if it is not known or no calendar reaches it."""
    if start is None or abs(n_days) > 40_000:
        return ""
    try:
        return (start + timedelta(days=n_days)).isoformat()
    except OverflowError:  # after the year 9999
        return ""


def weekday_after(index: int, recorded_on: date | None, *, week: str = "") -> str:
    """The next such weekday after the recording; `week` next or last moves it into that week, this keeps the week.

    A plain weekday is the first one after the day of the recording: `by Friday` said on a Friday is a week later.
    """
    if recorded_on is None:
        return ""
    monday = recorded_on - timedelta(days=recorded_on.weekday())
    if week in ("next", "this", "last"):
        return moved(monday, index + {"next": 7, "this": 0, "last": -7}[week])
    return moved(recorded_on, (index - recorded_on.weekday() - 1) % 7 + 1)


def month_end(recorded_on: date | None, *, n_later: int = 0) -> str:
    """The last day of the recording's month, or of one `n_later` months later."""
    if recorded_on is None:
        return ""
    count = recorded_on.year * 12 + recorded_on.month + n_later
    year, month = divmod(count, 12)
    return moved(_made(year, month + 1, 1), -1)


def clock(hour: int, minute: int = 0, *, half: str = "") -> str | None:
    """HH:MM; `half` pm adds twelve hours before noon, am makes twelve midnight. None for a time no clock shows."""
    if half in ("am", "pm") and 1 <= hour <= 12:
        hour = hour % 12 + (12 if half == "pm" else 0)
    return f"{hour:02d}:{minute:02d}" if 0 <= hour <= 23 and 0 <= minute <= 59 else None
