"""Dataclasses as JSON schemas, and values of those schemas as dataclasses."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from toolkit.errors import UsageError

_PLAIN: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_KNOWN = "str, int, float, bool, None, list, tuple[T, ...], dict[str, T], Literal, Enum, unions and dataclasses of these"


def schema_of_dataclass(kind: type) -> dict[str, Any]:
    """The JSON schema of a dataclass: every field is required, and there are no others.

    Raises:
        UsageError: A field has a type that JSON has not, or the class holds itself.
    """
    return _schema(kind, kind.__name__, ())


def _schema(kind: Any, where: str, outer: tuple[Any, ...]) -> dict[str, Any]:
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(part, where, outer) for part in inner]}
    if origin is list and len(inner) == 1 or origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        return {"type": "array", "items": _schema(inner[0], where, outer)}
    if origin is dict and inner[0] is str:
        return {"type": "object", "additionalProperties": _schema(inner[1], where, outer)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if isinstance(kind, type) and is_dataclass(kind):
        if kind in outer:
            raise UsageError(f"{where} holds itself", why=f"{kind.__name__} is inside of {kind.__name__}", fix="write a schema with $defs")
        names = _hints(kind)
        parts = {name: _schema(part, f"{kind.__name__}.{name}", (*outer, kind)) for name, part in names.items()}
        return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
    raise UsageError(f"{where} has a type that JSON has not", why=f"it is {kind!r}; known are {_KNOWN}", fix="use one of these")


def _hints(kind: Any) -> dict[str, Any]:
    """Type of each field that can be given."""
    try:
        hints = get_type_hints(kind)
    except NameError as error:
        raise UsageError(f"the types of {kind.__name__} are not known", why=str(error), fix="define them in its module") from error
    return {field.name: hints[field.name] for field in fields(kind) if field.init}


def build(kind: Any, value: Any) -> Any:
    """A parsed value as the type whose schema it follows.

    Raises:
        ValueError: It does not follow it.
    """
    if kind in _PLAIN:
        return _plain(kind, value)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _first(inner, value)
    if origin in (list, tuple) and isinstance(value, list):
        return origin(build(inner[0], part) for part in value)
    if origin is dict and isinstance(value, dict):
        return {key: build(inner[1], part) for key, part in value.items()}
    if origin is Literal and value in inner:
        return value
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        hints = _hints(kind)
        if set(hints) != set(value):
            raise ValueError(f"{kind.__name__} has the fields {', '.join(hints)}; the answer has {', '.join(map(str, value)) or 'none'}")
        return kind(**{name: build(part, value[name]) for name, part in hints.items()})
    raise ValueError(f"{value!r:.80} is no {getattr(kind, '__name__', kind)}")


def _plain(kind: Any, value: Any) -> Any:
    """JSON has one kind of number: a whole one is a float too, and 2.0 an integer."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is not kind:
        raise ValueError(f"{value!r:.80} is no {kind.__name__}")
    return value


def _first(kinds: tuple[Any, ...], value: Any) -> Any:
    for kind in kinds:
        try:
            return build(kind, value)
        except ValueError:
            continue
    raise ValueError(f"{value!r:.80} is none of the types of a union")
