"""The policy's benchmark: a simulation that says so, and the same figures every time."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

import benchmarks.governor_policy as benchmark
from benchmarks.governor_policy import LONG_TOKENS, PLACES, ROOM, SHORT_TOKENS, SUN, WARM, measure


@pytest.fixture
def two_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "PLACES", {WARM: PLACES[WARM]})


def figures(policy: str | None = None) -> dict[tuple[str, str], float]:
    report = measure(argparse.Namespace(policy=policy))
    assert report.settings["is_simulation"] is True
    return {(figure.subject, figure.name): figure.values[0] for figure in report.figures}


def test_heat_is_bought_with_time(two_places: None) -> None:
    told = figures()
    with_it, without = (f"{WARM}, {LONG_TOKENS} tokens, {side}" for side in ("governor", "no policy"))
    assert told[with_it, "over_severe_s"] == 0 < told[without, "over_severe_s"]
    assert told[with_it, "finish_s"] > told[without, "finish_s"]
    assert told[with_it, "done_share"] == told[without, "done_share"] == 1
    assert figures() == told


def test_a_table_of_ones_own_is_judged_and_one_that_never_acts_is_no_policy(two_places: None, tmp_path: Path) -> None:
    path = tmp_path / "never.toml"
    path.write_text("settle_s = 30\nrows = []\n")
    told = figures(str(path))
    for tokens in (SHORT_TOKENS, LONG_TOKENS):
        for name in ("over_severe_s", "tokens_per_j", "finish_s"):
            assert told[f"{WARM}, {tokens} tokens, governor", name] == told[f"{WARM}, {tokens} tokens, no policy", name]


def test_the_command_prints_and_judges(two_places: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["governor_policy", "--no-record", "--json", "--check"])
    assert benchmark.main() == 0
    record = json.loads(capsys.readouterr().out)
    assert any(figure.get("target", {}).get("is_met") is True for figure in record["figures"])
    assert ROOM in PLACES and SUN in PLACES


def test_a_policy_that_is_wrong_ends_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["governor_policy", "--no-record", "--policy", str(tmp_path / "missing.toml")])
    assert benchmark.main() == 2
