"""A Whisper folder's tokenizer.json, checked against its vocabulary list and the size of its token table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from converters.read.json_file import damaged_json, parse_json_object
from toolkit.errors import FormatError
from toolkit.units import format_bytes

TOKENIZER_NAME = "tokenizer.json"
MAX_TOKENIZER_BYTES = 32 * 2**20
MAX_VOCABULARY_BYTES = 16 * 2**20


def read_whisper_tokenizer(folder: Path, vocab_size: int) -> tuple[bytes, dict[str, int]]:
    """The bytes of tokenizer.json, and its added tokens, text -> id.

    Raises:
        FormatError: It is missing or damaged, an id has no text or two, or `vocabulary.txt` or `.json` says otherwise.
    """
    path = folder / TOKENIZER_NAME
    content = _read(path, MAX_TOKENIZER_BYTES)
    data = parse_json_object(content, path)
    model = data.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(model, dict) or model.get("type") != "BPE" or not isinstance(vocab, dict):
        raise damaged_json(path, "its model is no BPE with a vocabulary")
    special = _added(data.get("added_tokens"), path)
    texts: dict[int, str] = {}
    for text, token_id in [*vocab.items(), *special.items()]:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise damaged_json(path, f"{text[:40]!r} has the id {str(token_id)[:20]}; the token table has {vocab_size} rows")
        if texts.setdefault(token_id, text) != text:
            raise damaged_json(path, f"id {token_id} is both {texts[token_id][:40]!r} and {text[:40]!r}")
    _compare(folder, texts, vocab_size)
    return content, special


def _added(entries: Any, path: Path) -> dict[str, int]:
    if not isinstance(entries, list):
        raise damaged_json(path, "added_tokens is no list")
    special: dict[str, int] = {}
    for entry in entries:
        text, token_id = (entry.get("content"), entry.get("id")) if isinstance(entry, dict) else (None, None)
        if not isinstance(text, str) or type(token_id) is not int:
            raise damaged_json(path, "an added token without content or id")
        special[text] = token_id
    return special


def _compare(folder: Path, texts: dict[int, str], vocab_size: int) -> None:
    """Compare ids with `vocabulary.txt` or `vocabulary.json`, one text a row of the token table, where the folder has one."""
    lines = _vocabulary(folder)
    if lines is None:
        return
    name, listed = lines
    if len(listed) != vocab_size:
        raise damaged_json(folder / name, f"it lists {len(listed)} tokens, the token table has {vocab_size} rows")
    # The unused token of the multilingual vocabulary is empty in both.
    wrong = [token_id for token_id, text in texts.items() if listed[token_id] != text]
    if wrong:
        first = wrong[0]
        why = f"{len(wrong)} ids differ from {TOKENIZER_NAME}, first {first}: {listed[first][:40]!r} and {texts[first][:40]!r}"
        raise damaged_json(folder / name, why)


def _vocabulary(folder: Path) -> tuple[str, list[str]] | None:
    path = folder / "vocabulary.json"
    if path.exists():
        try:
            data = json.loads(_read(path, MAX_VOCABULARY_BYTES))
        except (ValueError, RecursionError) as error:
            raise damaged_json(path, str(error).splitlines()[0][:200]) from error
        if not isinstance(data, list) or not all(isinstance(text, str) for text in data):
            raise damaged_json(path, "it is no list of texts")
        return path.name, data
    path = folder / "vocabulary.txt"
    if not path.exists():
        return None
    try:
        text = _read(path, MAX_VOCABULARY_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged_json(path, "it is not UTF-8") from error
    return path.name, text.removesuffix("\n").split("\n")


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise damaged_json(path, f"it has {format_bytes(size)}; {format_bytes(max_bytes)} are allowed")
        return path.read_bytes()
    except OSError as error:
        raise FormatError(
            f"{path.name} cannot be read", why=error.strerror or str(error), fix=f"the folder {path.parent} must hold it; download it again"
        ) from error
