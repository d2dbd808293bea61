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


def test_against_shows_two_bundles_side_by_side_and_how_far_apart_they_are(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = small_bundle(tmp_path / "small-gguf-fp16", name="small-gguf-fp16", target="gguf", recipe={"name": "fp16"}, bits_per_weight=16.0)
    asked: list[object] = []

    def compare(name: str, path: Path, against: Path) -> object:
        asked.append((name, path, against))
        return small_fidelity(kl_mean=0.0213, kl_p99=0.456, top1_agreement=0.913, perplexity=13.0, reference_perplexity=12.5)

    monkeypatch.setattr("toolkit.cli.verify.call_plugin", compare)
    assert main(["verify", str(folder), "--against", str(other)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert asked == [("compare_bundles", folder, other)]
    wanted = {
        "bundle": "small-litert-int8: 6.84 KiB, 8.25 bits a weight, perplexity 13.00",
        "against": "small-gguf-fp16: 6.84 KiB, 16.00 bits a weight, perplexity 12.50",
        "compared": "2048 tokens",
        "KL": "mean 0.0213, p99 0.456 nats",
        "same top token": "91.3 %",
        "perplexity ratio": "1.0400",
    }
    assert rows == [f"{word:<{max(map(len, wanted))}}  {text}" for word, text in wanted.items()]
    assert main(["verify", str(folder), "--against", str(other), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(result[row]["name"], result[row]["recipe"], result[row]["perplexity"]) for row in ("bundle", "against")] == [
        ("small-litert-int8", "int8", 13.0),
        ("small-gguf-fp16", "fp16", 12.5),
    ]
    figures = (result["n_tokens"], result["kl_mean"], result["kl_p99"], result["top1_agreement"], result["perplexity_ratio"])
    assert figures == (2048, 0.0213, 0.456, 0.913, pytest.approx(1.04))


def test_against_a_damaged_bundle_exits_4_before_anything_is_compared(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = small_bundle(tmp_path / "other")
    (other / "model.bin").write_bytes(b"x" * 7000)
    monkeypatch.setattr("toolkit.cli.verify.call_plugin", lambda *_: pytest.fail("it was compared"))
    assert main(["verify", str(folder), "--against", str(other)]) == 4
    assert "model.bin" in capsys.readouterr().err
