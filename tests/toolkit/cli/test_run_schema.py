"""`toolkit run --schema`: what a script reads is a value of the schema, or the exit code says that it is not."""

from __future__ import annotations

import json
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_targets import tiny_targets
from toolkit.cli import main

pytestmark = pytest.mark.usefixtures("module_cache")
SCHEMA = {"type": "object", "properties": {"is_dry": {"type": "boolean"}}, "required": ["is_dry"], "additionalProperties": False}


@pytest.fixture(scope="module")
def onnx_bundle() -> Path:
    if not all(util.find_spec(name) for name in ("torch", "onnxruntime_genai", "llguidance")):
        pytest.skip("needs the extras convert and onnx")
    return tiny_targets() / "tiny-onnx-fp32"


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    return str(path)


def run(bundle: Path, schema: str, *more: str) -> int:
    return main(["run", str(bundle), "check the pump", "--schema", schema, *more])


def test_the_answer_is_a_value_of_the_schema(onnx_bundle: Path, schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(onnx_bundle, schema) == 0
    value = json.loads(capsys.readouterr().out)
    assert set(value) == {"is_dry"} and isinstance(value["is_dry"], bool)
    assert run(onnx_bundle, schema, "--json") == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert result["parsed"] == json.loads(result["text"]) == value and result["finish_reason"] == "stop"


def test_a_cut_answer_exits_1_and_says_so(onnx_bundle: Path, schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(onnx_bundle, schema, "--max-tokens", "3", "--json") == 1
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["parsed"] is None and result["finish_reason"] == "length" and result["error"]["code"] == 1
    assert len(captured.err.strip().splitlines()) == 3 and "--max-tokens 6" in captured.err
    assert run(onnx_bundle, schema, "--max-tokens", "3") == 1
    assert "cut before its value was whole" in capsys.readouterr().err


def test_litert_exits_5_and_names_what_can(chat_bundle: Path, schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(chat_bundle, schema) == 5
    captured = capsys.readouterr()
    assert captured.out == "" and "--to onnx" in captured.err and len(captured.err.strip().splitlines()) == 3


@pytest.mark.parametrize("text", ["{", "[]", '{"type": "pump"}', '{"$ref": "https://host/a"}'])
def test_a_bad_schema_exits_2_before_the_bundle_is_opened(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8")
    assert run(tmp_path / "no bundle", str(path)) == 2
    assert "schema" in capsys.readouterr().err


def test_a_schema_with_a_stop_string_exits_2(onnx_bundle: Path, schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(onnx_bundle, schema, "--stop", "}") == 2
    assert "stop strings" in capsys.readouterr().err
