"""`toolkit run` under a governor: what a device of a test's own tells reaches the exit code and the JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolkit.cli import main
from toolkit.power.rapl import RaplCounter
from toolkit.power.reading import Reading

pytestmark = pytest.mark.usefixtures("module_cache", "no_notes")
LOW = Reading(battery_share=0.12, is_plugged=False)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[[Reading], None]:
    def tell(reading: Reading) -> None:
        monkeypatch.setattr("toolkit.power.sources.device_readers", lambda: (lambda: reading,))

    return tell


def run(bundle: Path, *arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["run", str(bundle), "check the pump", "--json", "--max-tokens", "5", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_a_battery_below_the_floor_ends_with_3(chat_bundle: Path, device: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    device(LOW)
    code, result = run(chat_bundle, "--battery-floor", "0.15", capsys=capsys)
    assert code == 3 and result["error"]["code"] == 3
    assert result["error"]["why"] == "battery 12 %, below 15 %, unplugged"
    code, result = run(chat_bundle, "--battery-floor", "0.15", "--force", capsys=capsys)
    assert code == 0 and result["text"]
    assert [event["state"] for event in result["metrics"]["governor_events"]] == ["economy"]


def test_a_table_of_ones_own_is_obeyed_and_shown(
    chat_bundle: Path, device: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device(LOW)
    table = tmp_path / "mine.toml"
    table.write_text('settle_s = 30\n[economy]\nmax_new_tokens = 2\n[[rows]]\nlevel = "economy"\nbattery_below = 0.5\n')
    code, result = run(chat_bundle, "--governor", str(table), capsys=capsys)
    assert code == 0 and result["finish_reason"] == "budget" and result["metrics"]["n_generated_tokens"] == 2
    (event,) = result["metrics"]["governor_events"]
    assert (event["was"], event["state"], event["why"]) == ("full", "economy", "battery 12 %, below 50 %")
    assert main(["run", str(chat_bundle), "check the pump", "--max-tokens", "5", "--governor", str(table)]) == 0
    assert "governor economy, held 0.0 s (battery 12 %, below 50 %)" in capsys.readouterr().err


def test_it_can_be_left_out(chat_bundle: Path, device: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    device(Reading(battery_share=0.05, is_plugged=False))
    assert run(chat_bundle, capsys=capsys)[0] == 3  # the package's own table: there is a battery
    code, result = run(chat_bundle, "--no-governor", capsys=capsys)
    assert code == 0 and result["metrics"]["governor_events"] == []


def test_a_meter_that_counts_is_in_the_metrics(
    chat_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    joules = iter(range(0, 1000, 5))
    monkeypatch.setattr(RaplCounter, "is_there", True)
    monkeypatch.setattr(RaplCounter, "energy_j", lambda counter: float(next(joules)))
    metrics = run(chat_bundle, capsys=capsys)[1]["metrics"]
    assert (metrics["energy_j"], metrics["energy_meter"]) == (10.0, "rapl")
    assert metrics["prefill_j_per_token"] == pytest.approx(5 / metrics["n_prompt_tokens"])
    assert metrics["decode_j_per_token"] == 1.0


def test_without_a_meter_energy_is_null(chat_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(RaplCounter, "is_there", False)
    metrics = run(chat_bundle, capsys=capsys)[1]["metrics"]
    assert [metrics[name] for name in ("energy_j", "energy_meter", "prefill_j_per_token", "decode_j_per_token")] == [None] * 4


@pytest.mark.parametrize("option", [["--battery-floor", "15"], ["--max-temperature", "nan"], ["--governor", "missing.toml"]])
def test_wrong_options_end_with_2(option: list[str], chat_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(chat_bundle, *option, capsys=capsys)[0] == 2
