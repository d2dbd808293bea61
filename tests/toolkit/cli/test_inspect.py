from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.toolkit.small_manifest import small_bundle, small_fidelity
from toolkit.cli import main
from toolkit.cli.inspect import fidelity_text


def test_a_bundle_is_shown_from_its_manifest_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small_bundle(tmp_path / "small-litert-int8")
    (folder / "model.bin").unlink()
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    for fact in ("small-litert-int8", "litert, int8", "8.25", "2048 tokens", "Apache-2.0", "hf:org/small@main", "model.bin", "KL 0.0100"):
        assert fact in shown


def test_json_is_the_manifest_and_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small_bundle(tmp_path / "small-litert-int8")
    assert main(["inspect", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["kind"] == "bundle" and facts["path"] == str(folder) and facts["bytes"] == 7004
    assert facts["license"]["id"] == "Apache-2.0" and facts["files"][0]["path"] == "model.bin"


def test_a_damaged_manifest_exits_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small_bundle(tmp_path / "bundle")
    (folder / "manifest.json").write_text("{}")
    assert main(["inspect", str(folder)]) == 4
    assert "manifest.json" in capsys.readouterr().err


FACTS = {"license": {"id": "MIT"}, "weights_bytes": 2**20, "targets": ["litert"], "sha256": {"a_b.gguf": "0"}, "chat": False}


def answer_with(facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.cli.inspect.call_plugin", lambda name, source: {"asked": f"{name} {source}", **facts})


def test_anything_else_is_asked_of_the_plug_in(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answer_with(FACTS, monkeypatch)
    assert main(["inspect", "model.gguf"]) == 0
    lines = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines()]
    shown = {name.strip(): value.strip() for name, value in lines}
    assert shown["asked"] == "inspect_source model.gguf"
    wanted = {"license, id": "MIT", "weights bytes": "1 MiB", "sha256, a_b.gguf": "0", "chat": "no", "targets": "litert"}
    assert {name: shown[name] for name in wanted} == wanted
    assert main(["inspect", "model.gguf", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights_bytes"] == 2**20


def test_control_characters_do_not_reach_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answer_with({"name": "evil\x1b[2J"}, monkeypatch)
    assert main(["inspect", "x"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_figures_are_told_with_their_gates() -> None:
    text = fidelity_text(small_fidelity())
    assert "pass" in text and "95.0%" in text and "1.0083" in text and "kl_mean 0.03" in text
    assert fidelity_text(None) == "not measured"


def test_a_file_that_is_gone_or_of_another_size_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small_bundle(tmp_path / "small-litert-int8")
    sound = (folder / "model.bin").read_bytes()
    for content, said in ((sound, None), (sound + b"x", f"OTHER SIZE HERE: {len(sound) + 1} bytes"), (None, "MISSING HERE")):
        (folder / "model.bin").unlink() if content is None else (folder / "model.bin").write_bytes(content)
        assert main(["inspect", str(folder)]) == 0
        shown = capsys.readouterr().out
        assert ("HERE" in shown) == (said is not None) and (said or "") in shown
