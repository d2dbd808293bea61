"""Recorded or written traces of a device, as CSV, through the governor's own code.

    python -m toolkit.governor_replay TRACE.csv [--policy FILE]      prints each change of state

Columns: `time_s`, and any fields of `Reading`. Rows in the order of time; a row counts until the next one. Empty is unknown.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from toolkit.errors import FormatError, ToolkitError
from toolkit.governor import POLL_S, Governor, GovernorEvent
from toolkit.governor_policy import GovernorPolicy, load_policy
from toolkit.power.reading import MOST_THERMAL_STATUS, Reading, sane_power, sane_share, sane_temperature

TIME = "time_s"
_KINDS = {field.name: str(field.type).split(" ")[0] for field in fields(Reading)}
_BOOLEANS = {"true": True, "false": False}
_MOST_BYTES = 64 * 2**20
_LONGEST_S = 7 * 86400.0  # it is replayed second by second
_COLUMNS = f"use {TIME} and any of {', '.join(_KINDS)}"

Trace = Sequence[tuple[float, Reading]]


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace.

    Raises:
        FormatError: It cannot be read, or a line is no reading; the text names line and column.
    """
    file = Path(path)
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise FormatError(f"the trace {file} is too long", why=f"it has more than {_MOST_BYTES} bytes", fix="cut it into parts")
        with file.open(encoding="utf-8", newline="") as stream:
            return _rows(file.name, csv.reader(stream, strict=True))
    except OSError as error:
        raise FormatError(f"the trace {file} cannot be read", why=error.strerror or str(error), fix="give a CSV file") from error
    except (csv.Error, ValueError) as error:
        raise FormatError(f"the trace {file} is no CSV file", why=str(error), fix=_COLUMNS) from error


def _rows(name: str, lines: Any) -> Trace:
    header: list[str] = next(lines, [])
    if TIME not in header or len(set(header)) != len(header) or (unknown := [column for column in header if column not in (TIME, *_KINDS)]):
        why = f"its columns are {', '.join(header) or 'missing'}" if TIME not in header or len(set(header)) != len(header) else ""
        raise FormatError(f"the first line of the trace {name} is wrong", why=why or f"{unknown[0]} is not known", fix=_COLUMNS)
    rows: list[tuple[float, Reading]] = []
    for cells in lines:
        where = f"line {lines.line_num} of the trace {name}"
        if len(cells) != len(header):
            raise FormatError(f"{where} is wrong", why=f"it has {len(cells)} cells; the header has {len(header)}", fix="write one a column")
        named = dict(zip(header, cells, strict=True))
        at_s = _number(named.pop(TIME), TIME, where)
        if rows and at_s <= rows[-1][0]:
            raise FormatError(
                f"{where} is wrong", why=f"time_s {at_s:g} does not come after {rows[-1][0]:g}", fix="put rows in their order"
            )
        told: dict[str, Any] = {column: _value(text, column, where) for column, text in named.items() if text != ""}
        rows.append((at_s, Reading(**told)))
    if not rows:
        raise FormatError(f"the trace {name} is empty", why="it has no row below its header", fix="add one")
    if rows[-1][0] - rows[0][0] > _LONGEST_S:
        raise FormatError(f"the trace {name} is too long", why=f"it spans more than {_LONGEST_S / 86400:g} days", fix="cut it into parts")
    return rows


def _value(text: str, column: str, where: str) -> float | int | bool:
    if _KINDS[column] == "bool":
        if text not in _BOOLEANS:
            raise FormatError(f"{where} is wrong at {column}", why=f"{text!r} is neither true nor false", fix="write true or false")
        return _BOOLEANS[text]
    value = _number(text, column, where)
    if _KINDS[column] == "int":
        if value not in range(MOST_THERMAL_STATUS + 1):
            raise FormatError(f"{where} is wrong at {column}", why=f"{text} is no status", fix=f"use 0 to {MOST_THERMAL_STATUS}")
        return int(value)
    checks: dict[str, Callable[[float], float | None]] = {"temperature_c": sane_temperature, "battery_power_w": sane_power}
    is_sane = value >= 0 if column == "thermal_headroom" else checks.get(column, sane_share)(value) is not None
    if not is_sane:
        fix = "write shares from 0 to 1, temperatures from -40 to 150, watts above 0"
        raise FormatError(f"{where} is wrong at {column}", why=f"{text} is out of its range", fix=fix)
    return value


def _number(text: str, column: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FormatError(f"{where} is wrong at {column}", why=f"{text!r} is no number", fix="write it like 12.5") from None
    return value


class TraceReader:
    """Stands in for the device: tells the trace's last row that is not later than now. Before the first it tells nothing."""

    def __init__(self, trace: Trace, clock: Callable[[], float] = time.monotonic, *, began: float | None = None) -> None:
        """`began` is the clock's time at the trace's second 0; None: when it is first asked."""
        self._clock, self._began = clock, began
        self._times, self._readings = [at_s for at_s, _ in trace], [reading for _, reading in trace]

    def __call__(self) -> Reading:
        now = self._clock()
        self._began = now if self._began is None else self._began
        n_told = bisect_right(self._times, now - self._began)
        return self._readings[n_told - 1] if n_told else Reading()


def replay(trace: Trace, policy: GovernorPolicy | None = None) -> tuple[GovernorEvent, ...]:
    """Every change a governor makes on a trace, looked at each second and until a minute behind its end."""
    now, last = trace[0][0], trace[-1][0]
    governor = Governor(policy, TraceReader(trace, lambda: now, began=0.0), clock=lambda: now, wall_clock=lambda: now)
    while now <= last + 60:
        governor.poll()
        now += POLL_S
    return governor.events


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m toolkit.governor_replay", description="Show what the governor does on a trace.")
    parser.add_argument("trace", metavar="TRACE.csv")
    parser.add_argument("--policy", metavar="FILE", help="a table of your own (default: the one of the package)")
    args = parser.parse_args(arguments)
    try:
        for event in replay(read_trace(args.trace), load_policy(args.policy)):
            print(f"{event.at_s:10.1f} s  {event.was.value:>7} -> {event.state.value:<7}  {event.why}")
    except ToolkitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
