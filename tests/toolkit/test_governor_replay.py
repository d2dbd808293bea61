"""Traces: what is read, what is refused, and that they drive the governor's own code."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.errors import FormatError
from toolkit.governor import Governor, GovernorState
from toolkit.governor_replay import TraceReader, main, read_trace, replay
from toolkit.power.reading import Reading

HOT = "time_s,battery_share,is_plugged,thermal_status\n0,0.25,false,0\n40,0.19,false,1\n90,0.18,false,3\n150,0.18,true,0\n300,,,0\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_cells_are_readings_and_empty_ones_are_unknown(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "temperature_c,time_s,is_low_power_mode\n40.5,0,true\n,1.5,\n"))
    assert trace == [(0.0, Reading(temperature_c=40.5, is_low_power_mode=True)), (1.5, Reading())]


def test_the_table_of_the_package_on_a_walk_in_the_sun(tmp_path: Path) -> None:
    events = replay(read_trace(written(tmp_path, HOT)))
    assert [(event.at_s, event.state.value) for event in events] == [(40.0, "economy"), (90.0, "pause"), (180.0, "full")]
    assert events[0].why == "thermal status 1, at least 1"  # the battery's row leaves more of the time
    assert events[1].why == "thermal status 3, at least 3"


def test_a_trace_that_begins_later_keeps_its_own_seconds(tmp_path: Path) -> None:
    events = replay(read_trace(written(tmp_path, "time_s,thermal_status\n100,0\n110,4\n")))
    assert [(event.at_s, event.state.value) for event in events] == [(110.0, "stop")]


def test_the_command_prints_each_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(written(tmp_path, HOT))]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 3 and "economy -> pause" in out and "thermal status 3, at least 3" in out


def test_the_command_ends_with_the_errors_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, HOT)
    assert main([str(tmp_path / "missing.csv")]) == 4
    assert main([str(path), "--policy", str(path)]) == 2
    assert capsys.readouterr().err.count("fix:") == 2


def test_a_trace_stands_in_for_the_device_from_when_it_is_first_asked(tmp_path: Path) -> None:
    now = 5000.0
    reader = TraceReader(read_trace(written(tmp_path, "time_s,thermal_status\n0,0\n10,4\n")), clock=lambda: now)
    governor = Governor(reader=reader, clock=lambda: now)
    assert governor.poll() is GovernorState.FULL
    now += 9.5
    assert governor.poll() is GovernorState.FULL
    now += 1.0
    assert governor.poll() is GovernorState.STOP


WRONG = [
    ("", "first line", "missing"),
    ("battery_share\n1\n", "first line", "battery_share"),
    ("time_s,time_s\n1,1\n", "first line", "time_s, time_s"),
    ("time_s,volts\n1,1\n", "first line", "volts is not known"),
    ("time_s,battery_share\n", "is empty", "no row"),
    ("time_s,battery_share\n0,0.5\n1\n", "line 3", "1 cells"),
    ("time_s,battery_share\n0,0.5\n0,0.5\n", "line 3", "does not come after"),
    ("time_s,battery_share\nx,0.5\n", "line 2", "'x' is no number"),
    ("time_s,battery_share\nnan,0.5\n", "line 2", "'nan' is no number"),
    ("time_s,battery_share\n0,50\n", "line 2", "50 is out of its range"),
    ("time_s,battery_share\n0,-0.1\n", "line 2", "-0.1 is out of its range"),
    ("time_s,temperature_c\n0,900\n", "line 2", "900 is out of its range"),
    ("time_s,battery_power_w\n0,0\n", "line 2", "0 is out of its range"),
    ("time_s,thermal_headroom\n0,-1\n", "line 2", "-1 is out of its range"),
    ("time_s,thermal_status\n0,7\n", "line 2", "7 is no status"),
    ("time_s,thermal_status\n0,1.5\n", "line 2", "1.5 is no status"),
    ("time_s,is_plugged\n0,yes\n", "line 2", "'yes' is neither true nor false"),
    ('time_s,is_plugged\n0,"true\n', "no CSV file", "unexpected end of data"),
    ("time_s\n0\n1000000000\n", "too long", "7 days"),
]


@pytest.mark.parametrize(("text", "where", "why"), WRONG)
def test_what_is_no_trace_is_refused_by_its_line(text: str, where: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        read_trace(written(tmp_path, text))
    assert where in caught.value.what and why in caught.value.why and caught.value.fix
    assert caught.value.exit_code == 4


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="is no CSV file"):
        read_trace(path)
    with pytest.raises(FormatError, match="cannot be read"):
        read_trace(tmp_path)
