"""The governor's table: what it says, and what is refused by line and field."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolkit.budget import Budget
from toolkit.errors import UsageError
from toolkit.governor_policy import POLICY_PATH, GovernorPolicy, load_policy
from toolkit.governor_rows import CONDITIONS, Actions, GovernorState
from toolkit.power.reading import Reading


def levels(policy: GovernorPolicy, reading: Reading) -> set[str]:
    """Levels of all rows that hold for a device that was well before."""
    return {row.level.value for row in policy.rows if row.holds(reading, was_held=False)}


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (Reading(), set()),
        (Reading(battery_share=0.5, is_plugged=False, thermal_status=0, thermal_headroom=0.5, temperature_c=70.0), set()),
        (Reading(battery_share=0.19, is_plugged=False), {"economy"}),
        (Reading(battery_share=0.19, is_plugged=True), set()),
        (Reading(battery_share=0.19), set()),
        (Reading(battery_share=0.09, is_plugged=False), {"economy", "stop"}),
        (Reading(is_low_power_mode=True), {"economy"}),
        (Reading(thermal_status=1), {"economy"}),
        (Reading(thermal_status=3), {"economy", "pause"}),
        (Reading(thermal_status=4), {"economy", "pause", "stop"}),
        (Reading(thermal_headroom=0.85), {"economy"}),
        (Reading(thermal_headroom=1.0), {"economy", "pause"}),
        (Reading(temperature_c=95.0), {"economy"}),
        (Reading(temperature_c=110.0), {"economy", "pause", "stop"}),
        (Reading(memory_pressure=0.1), {"economy"}),
        (Reading(memory_pressure=0.4), {"economy", "pause"}),
        (Reading(memory_used_share=0.97), {"economy"}),
        (Reading(cpu_pressure=1.0), set()),
    ],
)
def test_the_table_of_the_package(reading: Reading, expected: set[str]) -> None:
    assert levels(load_policy(), reading) == expected


def test_what_economy_means_and_what_the_other_levels_leave() -> None:
    policy = load_policy()
    assert policy.actions(GovernorState.FULL) == Actions()
    economy = policy.actions(GovernorState.ECONOMY)
    assert economy == Actions(duty_share=0.6, thread_share=0.5, max_new_tokens=256, speculation=False)
    assert policy.actions(GovernorState.STOP) == economy
    assert [economy.threads_of(threads) for threads in (1, 2, 3, 8)] == [1, 1, 1, 4]


def test_every_condition_and_field_is_in_the_guide() -> None:
    guide = (POLICY_PATH.parents[1] / "docs/guides/governor.md").read_text("utf-8")
    fields = [*CONDITIONS, "unplugged_only", "low_power_mode", "settle_s", "duty_share", "thread_share", "max_new_tokens", "speculation"]
    assert [field for field in fields if f"`{field}`" not in guide] == []


def test_a_reason_has_the_figures() -> None:
    reading = Reading(battery_share=0.183, is_plugged=False, is_low_power_mode=True, temperature_c=95.5, thermal_headroom=0.9)
    said = [row.describe(reading) for row in load_policy().rows if row.holds(reading, was_held=False)]
    assert said == [
        "battery 18.3 %, below 20 %, unplugged",
        "low-power mode is on",
        "thermal headroom 0.9, at least 0.85",
        "temperature 95.5 °C, at least 95 °C",
    ]


def test_a_budget_moves_the_battery_floor_and_adds_its_temperature() -> None:
    policy = load_policy().within(Budget(battery_floor=0.05, max_temperature_c=45))
    assert levels(policy, Reading(battery_share=0.07, is_plugged=False)) == {"economy"}
    assert levels(policy, Reading(battery_share=0.04, is_plugged=False)) == {"economy", "stop"}
    assert levels(policy, Reading(temperature_c=45.0)) == {"pause"}
    row = policy.rows[-1]
    assert row.holds(Reading(temperature_c=42.5), was_held=True) and not row.holds(Reading(temperature_c=42.0), was_held=True)
    assert load_policy().within(Budget()) == load_policy()


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def written(text: str | bytes) -> Path:
        path = tmp_path / "mine.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


def test_a_table_of_ones_own_replaces_the_packages_whole(write) -> None:  # type: ignore[no-untyped-def]
    path = write(
        'settle_s = 5\nrows = [{level = "pause", battery_below = 0.5}]\n[economy]\nduty_share = 0.2\n[release]\nbattery_share = 0.1\n'
    )
    policy = load_policy(path)
    assert policy.settle_s == 5 and policy.economy == Actions(duty_share=0.2)
    assert levels(policy, Reading(battery_share=0.4, thermal_status=6)) == {"pause"}
    assert policy.rows[0].holds(Reading(battery_share=0.55), was_held=True)


def test_a_table_without_rows_never_acts(write) -> None:  # type: ignore[no-untyped-def]
    assert levels(load_policy(write("settle_s = 5\nrows = []\n")), Reading(battery_share=0.01, is_plugged=False, thermal_status=6)) == set()


ROW = 'settle_s = 5\n[[rows]]\nlevel = "economy"\nthermal_status_at_least = 1\n[[rows]]\n'
WRONG = [
    ("settle_s = \n", "is no TOML", "line 1"),
    (b"\xff\xfe", "is no TOML", ""),
    ("rows = []\n", "settle_s", "it is missing"),
    ("settle_s = -1\nrows = []\n", "line 1, settle_s", "-1 is no number from 0 to 3600"),
    ("settle_s = true\nrows = []\n", "line 1, settle_s", "True is no number"),
    ("settle_s = nan\nrows = []\n", "line 1, settle_s", "nan is no number"),
    ("settle_s = 5\n", "rows", "missing or no list of tables"),
    ("settle_s = 5\nrows = [1]\n", "line 2, rows", "missing or no list of tables"),
    ("settle_s = 5\nrow = []\n", "line 2, row", "row is not known there"),
    ("settle_s = 5\nrows = []\nrelease = 3\n", "line 3, release", "[release] is no table"),
    ("settle_s = 5\nrows = []\n[release]\n\ntemperature = 3\n", "line 5, release.temperature", "temperature is not known there"),
    ("settle_s = 5\nrows = []\n[release]\ntemperature_c = -3\n", "line 4, release.temperature_c", "-3 is no number from 0 to 150"),
    ("settle_s = 5\nrows = []\n[economy]\nduty_share = 0\n", "line 4, economy.duty_share", "0 is no number from 0.05 to 1"),
    ("settle_s = 5\nrows = []\n[economy]\nmax_new_tokens = 2.5\n", "line 4, economy.max_new_tokens", "2.5 is no whole number"),
    ("settle_s = 5\nrows = []\n[economy]\nspeculation = 0\n", "line 4, economy.speculation", "0 is neither true nor false"),
    (ROW + "battery_below = 0.2\n", "line 5, rows[1].level", "None is no level"),
    (ROW + 'level = "full"\nbattery_below = 0.2\n', "line 6, rows[1].level", "'full' is no level"),
    (ROW + 'level = "stop"\n', "line 6, rows[1].level", "the row has no condition"),
    (ROW + 'level = "stop"\nbattery_below = 20\n', "line 7, rows[1].battery_below", "20 is no number from 0 to 1"),
    (ROW + 'level = "stop"\nbatery_below = 0.2\n', "line 7, rows[1].batery_below", "batery_below is not known there"),
    (ROW + 'level = "stop"\nthermal_status_at_least = 0\n', "line 7, rows[1].thermal_status_at_least", "0 is no number from 1 to 6"),
    (ROW + 'level = "stop"\nunplugged_only = false\n', "line 7, rows[1].unplugged_only", "False is not true"),
    (ROW + 'level = "stop"\nlow_power_mode = true\nduty_share = 0.5\n', "line 8, rows[1].duty_share", "stop leaves the engine no time"),
    (ROW + 'level = "economy"\nlow_power_mode = true\nduty_share = 2\n', "line 8, rows[1].duty_share", "2 is no number from 0.05 to 1"),
    ('settle_s = 5\nrows = [{level = "x"}]\n', "rows[0].level", "'x' is no level"),
]


@pytest.mark.parametrize(("text", "place", "why"), WRONG)
def test_what_it_does_not_mean_is_refused_by_line_and_field(text: str | bytes, place: str, why: str, write) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError) as caught:
        load_policy(write(text))
    assert caught.value.exit_code == 2
    assert place in caught.value.what and why in caught.value.why and caught.value.fix


def test_the_near_word_is_named(write) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=r"did you mean battery_below\?"):
        load_policy(write(ROW + 'level = "stop"\nbatery_below = 0.2\n'))


def test_files_that_are_none_are_refused(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    for path in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            load_policy(path)
    with pytest.raises(UsageError, match="is too long"):
        load_policy(write("#" * (1 << 20) + "\n"))
    with pytest.raises(UsageError, match="is no TOML"):
        load_policy(write("rows = " + "[" * 100_000))


@pytest.mark.parametrize("path", [os.fspath(POLICY_PATH), POLICY_PATH])
def test_the_packages_own_file_is_one_of_them(path: str | Path) -> None:
    assert load_policy(path) == load_policy()


@pytest.mark.parametrize(
    "wrong", [{"battery_floor": 0.0}, {"battery_floor": 15}, {"battery_floor": float("nan")}, {"max_temperature_c": 0}]
)
def test_budgets_that_are_none(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Budget(**wrong)  # type: ignore[arg-type]
