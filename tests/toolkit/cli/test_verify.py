from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.toolkit.small_manifest import CONTENTS, small_bundle, small_fidelity
from toolkit.cli import main


@pytest.fixture
def folder(tmp_path: Path, own_folders: Path) -> Path:
    return small_bundle(tmp_path / "small-litert-int8")


def test_a_sound_bundle_shows_its_files_and_recorded_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "2 of 2 as published" in shown and "KL 0.0100" in shown
    assert main(["verify", str(folder), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"] == "pass" and result["fidelity"]["perplexity_ratio"] == pytest.approx(12.1 / 12.0)
    assert [record["path"] for record in result["files"]] == list(CONTENTS)
    assert result["measured_now"] is False


@pytest.mark.parametrize("name", [*CONTENTS, "manifest.json"])
def test_one_flipped_byte_exits_4_whatever_is_remembered(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder)]) == 0
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)
    capsys.readouterr()
    assert main(["verify", str(folder)]) == 4
    assert name in capsys.readouterr().err


def test_figures_that_failed_their_gates_exit_6(tmp_path: Path, own_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small_bundle(tmp_path / "bad", fidelity=small_fidelity(kl_mean=0.4, verdict="fail"))
    assert main(["verify", str(folder)]) == 6
    assert "KL 0.4000" in capsys.readouterr().err


def test_a_bundle_that_was_never_measured_says_so(tmp_path: Path, own_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small_bundle(tmp_path / "unmeasured", fidelity=None)
    assert main(["verify", str(folder), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"] == "not verified" and result["fidelity"] is None


def test_fidelity_measures_again_and_the_new_figures_decide(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []

    def measure(name: str, path: Path) -> object:
        asked.append((name, path))
        return small_fidelity(kl_mean=0.5, verdict="fail")

    monkeypatch.setattr("toolkit.cli.verify.call_plugin", measure)
    assert main(["verify", str(folder), "--fidelity"]) == 6
    assert asked == [("verify_fidelity", folder)]
    assert "measured now" in capsys.readouterr().out
