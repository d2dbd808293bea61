"""Reads manifest.json strictly: nothing of a bundle is opened before its manifest has passed here."""

from __future__ import annotations

import errno
import json
import math
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from toolkit.errors import FormatError
from toolkit.json_depth import check_json_depth
from toolkit.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    SCHEMA_VERSION,
    SEAL_FIELD,
    Fidelity,
    FileRecord,
    LicenseRecord,
    Manifest,
    SourceRecord,
    seal_of,
)

MAX_FILES = 10_000
MAX_FILE_BYTES = 2**50
MAX_CONTEXT_LENGTH = 2**27
_HEX_64 = re.compile(r"[0-9a-f]{64}")
_DRIVE = re.compile(r"[A-Za-z]:")
_VERDICTS = ("pass", "fail", "reported", "not verified")


class _Refusal(Exception):
    """What is wrong with one field; `read_manifest` adds the file's name and the way out."""


def load_manifest(path: Path) -> Manifest:
    """Read and check `path`, a manifest.json or a bundle folder that holds one.

    Raises:
        FormatError: It is missing, too large, damaged, from a newer version, or says something impossible.
    """
    path = path / MANIFEST_NAME if path.is_dir() else path
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is not a regular file")  # opening a pipe would wait for ever
        with path.open("rb") as stream:
            data = stream.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise FormatError(
            f"{path.parent} is not a bundle",
            why=f"{path.name} cannot be read: {error.strerror or error}",
            fix="give the folder that `convert` wrote; it holds manifest.json and the native files",
        ) from error
    return read_manifest(data, origin=str(path))


def read_manifest(data: bytes | str, *, origin: str = MANIFEST_NAME) -> Manifest:
    """Check the text of a manifest.json and return it as data. `origin` names it in errors.

    Raises:
        FormatError: As `load_manifest`.
    """
    try:
        text = _decoded(data)
        document = _document(text)
        _check_version(document, origin)
        _check_seal(document, text)
        return _manifest({name: value for name, value in document.items() if name != SEAL_FIELD})
    except _Refusal as refusal:
        raise FormatError(
            f"{origin} is damaged or was edited",
            why=str(refusal),
            fix="copy the bundle again from where it came from, or convert it again (convert SOURCE --to TARGET --force)",
        ) from refusal


def _decoded(data: bytes | str) -> str:
    if len(data) > MAX_MANIFEST_BYTES:
        raise _Refusal(f"it is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        return (data.encode("utf-8") if isinstance(data, str) else data).decode("utf-8")
    except UnicodeError as error:
        raise _Refusal("it is not UTF-8") from error


def _document(text: str) -> dict[str, Any]:
    try:
        check_json_depth(text)
        document = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
        json.dumps(document, ensure_ascii=False).encode()  # half a surrogate pair is JSON, but no text
    except (ValueError, RecursionError) as error:
        raise _Refusal(f"it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise _Refusal("it is not a JSON object")
    return document


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise _Refusal(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return dict(pairs)


def _no_constant(name: str) -> NoReturn:
    raise _Refusal(f"it holds {name}, which is not JSON")


def _check_version(document: dict[str, Any], origin: str) -> None:
    version = _whole("schema_version", document.get("schema_version"), low=1, high=2**31)
    if version > SCHEMA_VERSION:
        raise FormatError(
            f"{origin} was written by a newer toolkit",
            why=f"its schema_version is {version}; this version reads up to {SCHEMA_VERSION}",
            fix="upgrade: pip install --upgrade ondevice-toolkit",
        )


def _check_seal(document: dict[str, Any], text: str) -> None:
    seal = _digest(SEAL_FIELD, document.get(SEAL_FIELD))
    actual = seal_of(text, seal)
    if seal != actual:
        raise _Refusal(f"its text has SHA-256 {actual[:12]}..., but it states {seal[:12]}...")


def _manifest(document: dict[str, Any]) -> Manifest:
    _check_keys("the manifest", Manifest, document)
    values = {name: _FIELDS[name](name, value) for name, value in document.items()}
    manifest = Manifest(**values)
    if manifest.entry not in {record.path for record in manifest.files}:
        raise _Refusal(f"entry {manifest.entry!r} is none of its files")
    if manifest.chat and not manifest.chat_template:
        raise _Refusal("chat is true, but there is no chat_template")
    return manifest


def _check_keys(where: str, record: type, value: dict[str, Any]) -> None:
    known = {entry.name: entry for entry in fields(record)}
    unknown = sorted(set(value) - set(known))
    missing = sorted(
        name for name, entry in known.items() if name not in value and entry.default is MISSING and entry.default_factory is MISSING
    )
    if unknown or missing:
        raise _Refusal(f"{where} {'has the unknown' if unknown else 'lacks the'} field {(unknown or missing)[0]!r}")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _Refusal(f"{name} must be a string, not {_kind(value)}")
    return value


def _word(name: str, value: Any) -> str:
    text = _text(name, value)
    if not text or len(text) > 255 or not text.isprintable() or set(text) & set('/\\:*?"<>|') or text in (".", ".."):
        raise _Refusal(f"{name} {text[:60]!r} is no plain name")
    return text


def _maybe_text(name: str, value: Any) -> str | None:
    return None if value is None else _text(name, value)


def _claim(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Refusal(f"{name} must be true or false, not {_kind(value)}")
    return value


def _whole(name: str, value: Any, *, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _Refusal(f"{name} must be a whole number, not {_kind(value)}")
    if not low <= value <= high:
        raise _Refusal(f"{name} is {str(value)[:20]}; it must be {low} to {high}")
    return value


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _Refusal(f"{name} must be a number, not {_kind(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _Refusal(f"{name} is too large for a number")
    return number


def _positive(name: str, value: Any) -> float:
    number = _number(name, value)
    if number <= 0:
        raise _Refusal(f"{name} is {number}; it must be more than 0")
    return number


def _figure(name: str, value: Any) -> float:
    return math.nan if value is None else _number(name, value)


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Refusal(f"{name} must be an object, not {_kind(value)}")
    return value


def _mapping_of(check: Callable[[str, Any], Any]) -> Callable[[str, Any], dict[str, Any]]:
    return lambda name, value: {key: check(f"{name}.{key}", item) for key, item in _mapping(name, value).items()}


def _items(name: str, value: Any, *, most: int) -> list[Any]:
    if not isinstance(value, list):
        raise _Refusal(f"{name} must be a list, not {_kind(value)}")
    if len(value) > most:
        raise _Refusal(f"{name} has {len(value)} items; {most} are allowed")
    return value


def _digest(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _HEX_64.fullmatch(value):
        raise _Refusal(f"{name} is no SHA-256 in hex")
    return value


def _relative_path(name: str, value: Any) -> str:
    """A path that stays inside the bundle on every platform."""
    text = _text(name, value)
    parts = text.split("/")
    is_plain = text.isprintable() and "\\" not in text and not _DRIVE.match(text) and len(text) <= 1024
    if not is_plain or any(part in ("", ".", "..") for part in parts) or text.lower() == MANIFEST_NAME:
        raise _Refusal(f"{name} {text[:60]!r} is no path inside the bundle")
    return str(PurePosixPath(*parts))


def _file_records(name: str, value: Any) -> tuple[FileRecord, ...]:
    records = []
    for index, item in enumerate(_items(name, value, most=MAX_FILES)):
        where = f"{name}[{index}]"
        item = _mapping(where, item)
        _check_keys(where, FileRecord, item)
        size = _whole(f"{where}.bytes", item["bytes"], low=0, high=MAX_FILE_BYTES)
        records.append(FileRecord(_relative_path(f"{where}.path", item["path"]), size, _digest(f"{where}.sha256", item["sha256"])))
    paths = [record.path.lower() for record in records]
    if len(set(paths)) != len(paths):
        raise _Refusal(f"{name} names {next(path for path in paths if paths.count(path) > 1)!r} twice")
    return tuple(records)


def _source(name: str, value: Any) -> SourceRecord:
    item = _mapping(name, value)
    _check_keys(name, SourceRecord, item)
    return SourceRecord(
        uri=_text(f"{name}.uri", item["uri"]),
        revision=_maybe_text(f"{name}.revision", item.get("revision")),
        sha256=_mapping_of(_digest)(f"{name}.sha256", item.get("sha256", {})),
    )


def _license(name: str, value: Any) -> LicenseRecord:
    item = _mapping(name, value)
    _check_keys(name, LicenseRecord, item)
    url, accepted_at = (_maybe_text(f"{name}.{key}", item.get(key)) for key in ("url", "accepted_at"))
    return LicenseRecord(_text(f"{name}.id", item["id"]), url, accepted_at)


def _fidelity(name: str, value: Any) -> Fidelity | None:
    if value is None:
        return None
    item = dict(_mapping(name, value))
    _check_keys(name, Fidelity, item)
    for key in ("n_tokens", "greedy_tokens_equal", "greedy_tokens_compared"):
        item[key] = _whole(f"{name}.{key}", item[key], low=0, high=2**53)
    for key in ("kl_mean", "kl_p99", "top1_agreement", "max_abs_logit_error", "perplexity", "reference_perplexity"):
        item[key] = _figure(f"{name}.{key}", item[key])
    for key in ("word_error_rate", "reference_word_error_rate"):
        item[key] = None if item.get(key) is None else _number(f"{name}.{key}", item[key])
    if item["verdict"] not in _VERDICTS:
        raise _Refusal(f"{name}.verdict is none of {', '.join(_VERDICTS)}")
    item["gates"] = _mapping_of(_number)(f"{name}.gates", item.get("gates", {}))
    return Fidelity(**item)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    return tuple(_whole(f"{name}[{i}]", item, low=0, high=2**31 - 1) for i, item in enumerate(_items(name, value, most=4096)))


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return {str: "a string", dict: "an object", list: "a list", int: "a number", float: "a number"}[type(value)]


_FIELDS: dict[str, Callable[[str, Any], Any]] = {
    "name": _word,
    "target": _word,
    "recipe": _mapping,
    "spec": _mapping,
    "source": _source,
    "license": _license,
    "context_length": lambda name, value: _whole(name, value, low=1, high=MAX_CONTEXT_LENGTH),
    "chat": _claim,
    "chat_template": _maybe_text,
    "tokenizer": _mapping,
    "stop_token_ids": _token_ids,
    "bits_per_weight": _positive,
    "files": _file_records,
    "tools": _mapping_of(_text),
    "created_at": _text,
    "memory": _mapping,
    "fidelity": _fidelity,
    "entry": _text,
    "conversion_key": _text,
    "schema_version": lambda name, value: _whole(name, value, low=1, high=SCHEMA_VERSION),
}
