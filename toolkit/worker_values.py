"""Values that pass between processes: JSON, the dataclasses of the backend contract, callbacks, and handles of objects that stay there."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import toolkit.backends.base as contract

_TAG, _BODY = "$", "body"
_MOST_METHODS = 200


class TransferError(Exception):
    """A value that cannot pass, or bytes from the other side that are no value."""


class Handle:
    """An object in the other process: its number, which methods it has, and its public plain attributes."""

    def __init__(self, number: int, methods: frozenset[str], values: dict[str, Any]) -> None:
        self.number, self.methods, self.values = number, methods, values


def encode(value: Any, *, on_callback: Callable[[Any], int] | None = None, on_object: Callable[[Any], int] | None = None) -> Any:
    """A value as JSON data.

    Args:
        value: What to send.
        on_callback: Keeps a callable and returns its number; None where callables cannot be sent.
        on_object: Keeps any other object and returns its number; None where objects cannot be sent.

    Raises:
        TransferError: It cannot be sent.
    """

    def convert(item: Any) -> Any:
        if item is None or isinstance(item, bool | int | float | str):
            return str(item) if isinstance(item, str) else item
        if isinstance(item, list | tuple):
            return [convert(part) for part in item]
        if isinstance(item, dict):
            return {_TAG: "dict", _BODY: {str(key): convert(part) for key, part in item.items()}}
        if isinstance(item, bytes | bytearray):
            return {_TAG: "bytes", _BODY: base64.b64encode(item).decode("ascii")}
        if is_dataclass(item) and not isinstance(item, type) and type(item) is getattr(contract, type(item).__name__, None):
            return {_TAG: type(item).__name__, _BODY: {field.name: convert(getattr(item, field.name)) for field in fields(item)}}
        if callable(item) and on_callback is not None:
            return {_TAG: "callback", _BODY: on_callback(item)}
        if on_object is not None:
            return {_TAG: "object", _BODY: {"number": on_object(item), **_described(item)}}
        raise TransferError(f"a {type(item).__name__} cannot pass between processes")

    return convert(value)


def _described(item: Any) -> dict[str, Any]:
    methods, values = [], {}
    for name in dir(item):
        if name.startswith("_"):
            continue
        try:
            attribute = getattr(item, name)
        except Exception:  # a property that fails now is simply not told
            continue
        if callable(attribute):
            methods.append(name)
        elif attribute is None or isinstance(attribute, bool | int | float | str):
            values[name] = attribute
    return {"methods": methods, "values": values}


def decode(data: Any, *, callback: Callable[[int], Any] | None = None) -> Any:
    """The inverse of `encode`; objects come as `Handle`.

    Args:
        data: JSON data from the other side.
        callback: Makes a callable of its number; None where none may come.

    Raises:
        TransferError: It is no value.
    """

    def convert(item: Any) -> Any:
        if item is None or isinstance(item, bool | int | float | str):
            return item
        if isinstance(item, list):
            return [convert(part) for part in item]
        if not isinstance(item, dict) or set(item) != {_TAG, _BODY}:
            raise TransferError("it is neither plain nor tagged")
        tag, body = item[_TAG], item[_BODY]
        if tag == "bytes":
            return _bytes(body)
        if tag == "callback" and callback is not None and isinstance(body, int):
            return callback(body)
        if not isinstance(body, dict):
            raise TransferError(f"a {str(tag)[:40]} has no fields")
        if tag == "dict":
            return {key: convert(part) for key, part in body.items()}
        if tag == "object":
            return _handle(body)
        return _dataclass(tag, {key: convert(part) for key, part in body.items()})

    return convert(data)


def _bytes(body: Any) -> bytes:
    try:
        return base64.b64decode(body, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise TransferError("its bytes are no base64") from error


def _handle(body: dict[str, Any]) -> Handle:
    number, methods, values = body.get("number"), body.get("methods"), body.get("values")
    if not isinstance(number, int) or not isinstance(methods, list) or not isinstance(values, dict) or len(methods) > _MOST_METHODS:
        raise TransferError("an object is not described")
    return Handle(number, frozenset(str(name) for name in methods), values)


def _dataclass(tag: Any, body: dict[str, Any]) -> Any:
    kind = getattr(contract, tag, None) if isinstance(tag, str) and not tag.startswith("_") else None
    if not isinstance(kind, type) or not is_dataclass(kind) or kind.__module__ != contract.__name__:
        raise TransferError(f"{str(tag)[:40]!r} is no type of the backend contract")
    try:
        return kind(**body)
    except TypeError as error:
        raise TransferError(str(error)) from error
