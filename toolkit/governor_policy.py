"""Reads the governor's table, the one of this package or a user's, and refuses whatever it does not mean."""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolkit.budget import Budget
from toolkit.errors import UsageError
from toolkit.governor_rows import CONDITIONS, Actions, Condition, GovernorState, Row
from toolkit.power.reading import MOST_THERMAL_STATUS

POLICY_PATH = Path(__file__).with_name("governor.toml")
_MOST_BYTES = 1 << 20
_GUIDE = "docs/guides/governor.md"
# What a limit on each field may be: anything else holds always, or never.
_RANGES: dict[str, tuple[float, float]] = {
    "battery_share": (0.0, 1.0),
    "temperature_c": (-40.0, 150.0),
    "thermal_status": (1, MOST_THERMAL_STATUS),
    "thermal_headroom": (0.0, 10.0),
    "memory_pressure": (0.0, 1.0),
    "memory_used_share": (0.0, 1.0),
}
_FLAGS = ("unplugged_only", "low_power_mode")
_LEVELS = tuple(state.value for state in GovernorState if state is not GovernorState.FULL)


@dataclass(frozen=True)
class GovernorPolicy:
    """The table.

    Args:
        rows: What asks for which level.
        settle_s: How long better has to last before it counts.
        economy: What ECONOMY means.
        margins: Of rows that are added, by the field of `Reading`; those that are here have their own.
    """

    rows: tuple[Row, ...]
    settle_s: float
    economy: Actions
    margins: Mapping[str, float] = field(default_factory=dict)

    def actions(self, state: GovernorState, duty_share: float | None = None) -> Actions:
        """What a level means, with the share its rows ask for. PAUSE and STOP leave ECONOMY's for what is begun meanwhile."""
        if state is GovernorState.FULL:
            return Actions()
        return self.economy if duty_share is None else replace(self.economy, duty_share=duty_share)

    def duty_share(self, row: Row) -> float:
        """Of the time, what a row leaves: nothing while it pauses."""
        if row.level is not GovernorState.ECONOMY:
            return 0.0
        return self.economy.duty_share if row.duty_share is None else row.duty_share

    def within(self, budget: Budget) -> GovernorPolicy:
        """This table with a budget's own limits: its battery floor stops instead of the table's, its temperature pauses besides."""
        rows = list(self.rows)
        if budget.battery_floor is not None:
            rows = [row for row in rows if not _stops_for_battery(row)]
            condition = Condition("battery_share", "below", budget.battery_floor, self.margins.get("battery_share", 0.0))
            rows.append(Row(GovernorState.STOP, (condition,), unplugged_only=True))
        if budget.max_temperature_c is not None:
            margin = self.margins.get("temperature_c", 0.0)
            rows.append(Row(GovernorState.PAUSE, (Condition("temperature_c", "at least", budget.max_temperature_c, margin),)))
        return replace(self, rows=tuple(rows))


def _stops_for_battery(row: Row) -> bool:
    return row.level is GovernorState.STOP and any(condition.field == "battery_share" for condition in row.conditions)


def load_policy(path: str | os.PathLike[str] | None = None) -> GovernorPolicy:
    """Read a table; None: the one of this package.

    Raises:
        UsageError: The file cannot be read, is no TOML, or says what the table has no word for; the text names line and field.
    """
    chosen = POLICY_PATH if path is None else Path(path)
    try:
        with chosen.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the governor's policy {chosen} cannot be read", why=error.strerror or str(error), fix=_start_from()) from error
    if len(data) > _MOST_BYTES:
        raise UsageError(f"the governor's policy {chosen} is too long", why=f"it has more than {_MOST_BYTES} bytes", fix=_start_from())
    try:
        text = data.decode("utf-8")
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib's own error says the line and the column
        raise UsageError(f"the governor's policy {chosen} is no TOML", why=str(error), fix=_start_from()) from error
    return _Table(chosen.name, text, table).policy()


def _start_from() -> str:
    return f"start from the table in {_GUIDE}"


class _Table:
    """One file while it is checked: knows where each field stands."""

    def __init__(self, name: str, text: str, table: Mapping[str, Any]) -> None:
        self._name, self._lines, self._table = name, text.splitlines(), table

    def policy(self) -> GovernorPolicy:
        self._refuse_unknown(self._table, ("settle_s", "release", "economy", "rows"), "")
        margins = self._section("release")
        self._refuse_unknown(margins, _RANGES, "release")
        checked = {name: self._number(margins, name, "release", 0, _RANGES[name][1]) for name in margins}
        rows = self._table.get("rows")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self._error("rows", "", "[[rows]] is missing or no list of tables", "write rows = [] for a governor that never acts")
        return GovernorPolicy(
            rows=tuple(self._row(row, index, checked) for index, row in enumerate(rows)),
            settle_s=self._number(self._table, "settle_s", "", 0, 3600),
            economy=self._economy(),
            margins=checked,
        )

    def _economy(self) -> Actions:
        section = self._section("economy")
        self._refuse_unknown(section, ("duty_share", "thread_share", "max_new_tokens", "speculation"), "economy")
        shares = {name: self._number(section, name, "economy", 0.05, 1) for name in ("duty_share", "thread_share") if name in section}
        most = self._number(section, "max_new_tokens", "economy", 1, 2**31) if "max_new_tokens" in section else None
        if most is not None and most != int(most):
            raise self._error("max_new_tokens", "economy", f"{most} is no whole number", "write it like 256")
        speculation = section.get("speculation", True)
        if not isinstance(speculation, bool):
            raise self._error("speculation", "economy", f"{speculation!r} is neither true nor false", "write true or false")
        return Actions(**shares, max_new_tokens=None if most is None else int(most), speculation=speculation)

    def _row(self, row: Mapping[str, Any], index: int, margins: Mapping[str, float]) -> Row:
        where = f"rows[{index}]"
        self._refuse_unknown(row, ("level", "duty_share", *CONDITIONS, *_FLAGS), where)
        level = row.get("level")
        if level not in _LEVELS:
            raise self._error("level", where, f"{level!r} is no level", f"use one of {', '.join(_LEVELS)}")
        for flag in _FLAGS:
            if flag in row and row[flag] is not True:
                raise self._error(flag, where, f"{row[flag]!r} is not true", f"leave {flag} out, or write true")
        conditions = []
        for key in (key for key in CONDITIONS if key in row):
            name, side = CONDITIONS[key]
            limit = self._number(row, key, where, *_RANGES[name])
            conditions.append(Condition(name, side, limit, margins.get(name, 0.0)))
        if not conditions and not any(flag in row for flag in _FLAGS):
            raise self._error("level", where, "the row has no condition", f"add one of {', '.join((*CONDITIONS, *_FLAGS))}")
        flags = {flag: flag in row for flag in _FLAGS}
        return Row(GovernorState(level), tuple(conditions), duty_share=self._duty_share(row, level, where), **flags)

    def _duty_share(self, row: Mapping[str, Any], level: str, where: str) -> float | None:
        if "duty_share" not in row:
            return None
        if level != GovernorState.ECONOMY:
            raise self._error("duty_share", where, f"{level} leaves the engine no time", "leave it out, or use level economy")
        return self._number(row, "duty_share", where, 0.05, 1)

    def _section(self, name: str) -> Mapping[str, Any]:
        section = self._table.get(name, {})
        if not isinstance(section, dict):
            raise self._error(name, "", f"[{name}] is no table", f"write [{name}] and its fields below")
        return section

    def _number(self, table: Mapping[str, Any], key: str, where: str, low: float, high: float) -> float:
        value = table.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not low <= value <= high:
            said = "it is missing" if value is None else f"{value!r} is no number from {low:g} to {high:g}"
            raise self._error(key, where, said, f"write {key} as a number from {low:g} to {high:g}")
        return value

    def _refuse_unknown(self, table: Mapping[str, Any], known: Sequence[str] | Mapping[str, Any], where: str) -> None:
        for key in table:
            if key not in known:
                near = difflib.get_close_matches(key, list(known), 1)
                fix = f"did you mean {near[0]}?" if near else f"use {', '.join(known)}"
                raise self._error(key, where, f"{key} is not known there", fix)

    def _error(self, key: str, where: str, why: str, fix: str) -> UsageError:
        name = f"{where}.{key}" if where else key
        line = self._line_of(key, where)
        place = f"line {line}, {name}" if line else name
        return UsageError(f"the governor's policy {self._name} is wrong at {place}", why=why, fix=fix)

    def _line_of(self, key: str, where: str) -> int | None:
        """The line a field stands in, or of its table where it is missing; None for what is written in another way."""
        row = int(where[5:-1]) if where.startswith("rows[") else None
        header = "[[rows]]" if row is not None else f"[{where}]" if where else None
        starts = [number for number, line in enumerate(self._lines) if header and line.strip().startswith(header)]
        nth = row or 0
        start = 0 if header is None else (starts[nth] if nth < len(starts) else None)
        if start is None:
            return None
        for number in range(start, len(self._lines)):
            stripped = self._lines[number].strip()
            if number > start and stripped.startswith("[") and header is not None:
                break
            if stripped.split("=")[0].strip() in (key, f"[{key}]", f"[[{key}]]"):
                return number + 1
        return start + 1 if header is not None else None
