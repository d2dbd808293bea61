"""Schemas of dictionaries, files, dataclasses and pydantic models; what is none is refused before an engine sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from toolkit.errors import EngineError, UsageError
from toolkit.schema import MAX_BYTES, MAX_DEPTH, read_schema

PUMP = {"type": "object", "properties": {"pump": {"type": "integer"}}, "required": ["pump"]}


class State(Enum):
    DRY = "dry"
    WET = "wet"


@dataclass
class Part:
    name: str
    grams: float


@dataclass
class Report:
    state: State
    parts: list[Part]
    station: int | None
    kind: Literal["daily", "weekly"]
    marks: tuple[bool, ...] = ()
    notes: dict[str, str] = field(default_factory=dict)
    n_seen: int = field(default=0, init=False)


@dataclass
class Loop:
    inner: Loop | None


@dataclass
class Odd:
    when: complex


class Model:
    """What pydantic's models have."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return PUMP

    @classmethod
    def model_validate_json(cls, text: str) -> tuple[str, Any]:
        return ("made", json.loads(text)["pump"])


def nested(depth: int) -> dict[str, Any]:
    return {"items": nested(depth - 1)} if depth > 1 else {}


def test_a_dictionary_and_a_file_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "pump.json"
    path.write_text(json.dumps(PUMP), encoding="utf-8")
    for given in (PUMP, path, str(path)):
        schema = read_schema(given)
        assert json.loads(schema.text) == PUMP and schema.parsed('{"pump": 4}') == {"pump": 4}
        assert read_schema(schema) is schema


def test_a_dataclass_says_its_schema_and_gets_its_value() -> None:
    schema = read_schema(Report)
    said = json.loads(schema.text)
    assert said["required"] == ["state", "parts", "station", "kind", "marks", "notes"] and said["additionalProperties"] is False
    assert said["properties"]["state"] == {"enum": ["dry", "wet"]} and said["properties"]["kind"] == {"enum": ["daily", "weekly"]}
    assert said["properties"]["station"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert said["properties"]["parts"]["items"]["properties"] == {"name": {"type": "string"}, "grams": {"type": "number"}}
    value = {"state": "wet", "parts": [{"name": "a", "grams": 2}], "station": None, "kind": "daily", "marks": [True], "notes": {"b": "c"}}
    assert schema.parsed(json.dumps(value)) == Report(State.WET, [Part("a", 2.0)], None, "daily", (True,), {"b": "c"})


@pytest.mark.parametrize(
    "change", [{"state": "damp"}, {"parts": [{"name": "a"}]}, {"station": "4"}, {"station": True}, {"kind": 1}, {"parts": {}}, {"more": 1}]
)
def test_a_value_that_is_not_the_dataclass_is_an_error(change: dict[str, Any]) -> None:
    right = {"state": "wet", "parts": [], "station": 4.0, "kind": "daily", "marks": [], "notes": {}}
    assert read_schema(Report).parsed(json.dumps(right)).station == 4
    with pytest.raises(EngineError, match="not what was asked for"):
        read_schema(Report).parsed(json.dumps(right | change))


def test_a_class_with_pydantics_methods_makes_its_own_value() -> None:
    assert read_schema(Model).parsed('{"pump": 4}') == ("made", 4)
    with pytest.raises(EngineError, match="KeyError"):
        read_schema(Model).parsed("{}")


def test_pydantic_itself() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Pump", pump=(int, ...), state=(State, ...))
    made = read_schema(model).parsed('{"pump": 4, "state": "dry"}')
    assert isinstance(made, model) and made.pump == 4 and made.state is State.DRY


@pytest.mark.parametrize(
    "given",
    [
        [],
        7,
        int,
        {"type": "pump"},
        {"type": ["string", "pump"]},
        {"type": {}},
        {"properties": []},
        {"properties": {"a": 4}},
        {"properties": {"a": {"type": "x"}}},
        {"items": {"anyOf": [{"type": "x"}]}},
        {"anyOf": 4},
        {"$ref": "https://host/schema.json"},
        {"$defs": {"a": {"$ref": 4}}},
        {"required": "a"},
        {"enum": [{1, 2}]},
        {"maximum": float("nan")},
        {"const": "\ud800"},
        {"description": "x" * MAX_BYTES},
        nested(MAX_DEPTH + 1),
        Loop,
        Odd,
        Path("missing.json"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_what_is_no_schema_is_refused_as_a_mistake_of_the_request(given: Any) -> None:
    with pytest.raises(UsageError) as caught:
        read_schema(given)
    assert caught.value.exit_code == 2 and caught.value.why and caught.value.fix
    assert len(str(caught.value).splitlines()) == 3


def test_the_largest_and_deepest_that_are_promised_pass() -> None:
    read_schema(nested(MAX_DEPTH))
    frame = len(json.dumps({"description": ""}))
    read_schema({"description": "x" * (MAX_BYTES - frame)})


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[]", "no object"),
        (b"[" * 90_000, "too large"),
        (b"[" * 900, "no JSON"),
        (b'{"type": "x"}', "'x'"),
    ],
)
def test_a_file_that_is_no_schema_is_refused(data: bytes, match: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=match):
        read_schema(path)


@pytest.mark.parametrize("place", [lambda folder: folder, lambda folder: folder / "a\0b"])
def test_a_path_that_cannot_be_read_is_refused(place: Callable[[Path], Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read_schema(place(tmp_path))
