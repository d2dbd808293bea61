"""What an answer has to look like: a JSON schema, and what its value becomes.

A schema comes as a dictionary, as a file, as a dataclass, or as a class with pydantic's methods (`model_json_schema` and
`model_validate_json`; pydantic itself is never imported). It is checked here, before an engine sees it: engines compile schemas in
native code, in a time that grows with their size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import EngineError, UsageError, one_line
from toolkit.json_depth import check_json_depth
from toolkit.schema_types import build, schema_of_dataclass

MAX_BYTES = 65_536
MAX_DEPTH = 32
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_EXAMPLE = """{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}"""


@dataclass(frozen=True)
class Schema:
    """A checked schema.

    Args:
        text: Its JSON.
        make: The value of an answer's text. Raises what it likes where the text is none.
    """

    text: str
    make: Callable[[str], Any]

    def parsed(self, text: str) -> Any:
        """The value of a whole answer.

        Raises:
            EngineError: It is none: the engine let something pass, or the class has rules of its own.
        """
        try:
            return self.make(text)
        except Exception as error:  # a class of the user's raises what it likes
            raise EngineError(
                "the answer is not what was asked for",
                why=one_line(error),
                fix="ask again with a temperature and another seed, or put the class's own rules into its schema",
            ) from error


def read_schema(given: Any) -> Schema:
    """A schema of whatever says one.

    Args:
        given: A dictionary, the path of a file, a dataclass, or a class with `model_json_schema`.

    Raises:
        UsageError: It is none, cannot be read, or is too large.
    """
    if isinstance(given, Schema):
        return given
    if isinstance(given, Mapping):
        return Schema(_checked(dict(given)), json.loads)
    if isinstance(given, str | os.PathLike):
        return Schema(_checked(_read_file(Path(given))), json.loads)
    if isinstance(given, type) and callable(getattr(given, "model_json_schema", None)):
        return _of_model(given)
    if isinstance(given, type) and is_dataclass(given):
        return Schema(_checked(schema_of_dataclass(given)), lambda text: build(given, json.loads(text)))
    raise UsageError(
        f"a {type(given).__name__} is no schema",
        why="known are a dictionary, the path of a JSON file, a dataclass, and a pydantic model's class",
        fix="pass one of these: schema=Report",
    )


def _of_model(model: Any) -> Schema:
    try:
        schema = model.model_json_schema()
    except Exception as error:  # pydantic's own errors
        raise UsageError(f"{model.__name__} has no JSON schema", why=one_line(error), fix="use types that JSON has") from error
    return Schema(_checked(schema), model.model_validate_json)


def _read_file(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8")
        if len(data) <= MAX_BYTES:
            check_json_depth(text, most=MAX_DEPTH)
            return json.loads(text)
    except OSError as error:
        raise UsageError(f"the schema {path} cannot be read", why=error.strerror or str(error), fix="name a JSON file") from error
    except ValueError as error:  # no UTF-8, no JSON, or too deep
        raise UsageError(f"the schema {path} is no JSON", why=str(error), fix=f"write it like {_EXAMPLE}") from error
    raise _too_large(path.stat().st_size)


def _too_large(size: int) -> UsageError:
    return UsageError("the schema is too large", why=f"it has {size} bytes; up to {MAX_BYTES} are compiled", fix="ask for less at once")


def _checked(schema: Any) -> str:
    """The schema's JSON, once it looks like one."""
    if not isinstance(schema, dict):
        raise UsageError("the schema is no object", why=f"it is a {type(schema).__name__}", fix=f"write it like {_EXAMPLE}")
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        text.encode()
        check_json_depth(text, most=MAX_DEPTH)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError("the schema is no JSON", why=str(error), fix=f"write it like {_EXAMPLE}") from error
    if (size := len(text.encode())) > MAX_BYTES:
        raise _too_large(size)
    _check_parts(schema, "the schema")
    return text


def _check_parts(schema: Any, where: str) -> None:
    """What every engine would stumble over, in its own words or none: types that are none, and references out of the schema."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise UsageError(f"{where} is no schema", why=f"it is a {type(schema).__name__}", fix=f"write it like {_EXAMPLE}")
    kind = schema.get("type", "object")
    for name in kind if isinstance(kind, list) else [kind]:
        if name not in TYPES:
            raise UsageError(f"{where} has the type {name!r}", why=f"JSON has {', '.join(TYPES)}", fix="use one of these")
    reference = schema.get("$ref", "#")
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise UsageError(
            f"{where} refers to {reference!r}", why="nothing is fetched for a schema", fix='put it into "$defs" and refer to "#/$defs/NAME"'
        )
    for keyword in ("properties", "$defs", "definitions", "patternProperties"):
        parts = schema.get(keyword, {})
        if not isinstance(parts, dict):
            raise UsageError(f"{keyword!r} of {where} is no object", why=f"it is a {type(parts).__name__}", fix=f"write it like {_EXAMPLE}")
        for name, part in parts.items():
            _check_parts(part, f"{name!r} of {where}" if where == "the schema" else f"{name!r} in {where}")
    for keyword in ("items", "additionalProperties", "not"):
        if keyword in schema and not isinstance(schema[keyword], list):
            _check_parts(schema[keyword], f"{keyword!r} of {where}")
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        parts = schema.get(keyword, [])
        for part in parts if isinstance(parts, list) else [parts]:
            _check_parts(part, f"a part of {keyword!r} of {where}")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise UsageError(f"'required' of {where} is no list of names", why=f"it is {required!r}"[:200], fix=f"write it like {_EXAMPLE}")
