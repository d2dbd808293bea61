"""The tokenizer and chat template of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converters.checkpoint import TokenizerFiles, TokenizerKind
from converters.panics import is_panic
from converters.read.json_file import damaged_json, read_json_object
from converters.read.piece_merges import SPACE
from toolkit.errors import BackendUnavailableError, FormatError, UnsupportedModelError

TOKENIZER_NAMES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "chat_template.jinja")
_MAX_TOKENIZER_BYTES = 256 * 2**20
_MAX_CONFIG_BYTES = 4 * 2**20
_MAX_TEMPLATE_BYTES = 2**20


def tokenizer_from_hf(directory: Path, vocab_size: int) -> tuple[TokenizerFiles, dict[str, int]]:
    """Read tokenizer.json and what stands beside it; also its control tokens, text to id.

    Args:
        vocab_size: Rows of the embedding table; every token id must be below it.

    Raises:
        FormatError: tokenizer.json is missing, damaged, or has ids the embeddings do not.
        UnsupportedModelError: Its model is not BPE.
    """
    path = directory / "tokenizer.json"
    if not path.exists():
        raise FormatError(
            f"{directory.name} has no tokenizer.json",
            why="a bundle cannot be checked without one",
            fix="write it with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
        )
    data = read_json_object(path, max_bytes=_MAX_TOKENIZER_BYTES)
    config = _optional_json(directory / "tokenizer_config.json")
    config.pop("chat_template", None)
    config.pop("auto_map", None)
    _check_vocabulary(path, data, vocab_size)
    kind = _kind(data, directory.name)
    model_path = directory / "tokenizer.model"
    content = path.read_bytes()
    _check_loads(path, content)
    control = {token["content"]: token["id"] for token in data.get("added_tokens") or [] if token.get("special")}
    files = TokenizerFiles(
        kind=kind,
        tokenizer_json=content,
        pieces=None,
        add_bos=_adds_bos(data, config),
        config=config,
        added_space_prefix=kind == "sentencepiece" and _has_space_prefix(data),
        sentencepiece_model=_small_file(model_path, _MAX_TOKENIZER_BYTES) if model_path.exists() else None,
    )
    return files, control


def _check_loads(path: Path, content: bytes) -> None:
    """Let the tokenizers library read it once, here, where the file can still be named."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise BackendUnavailableError(
            f"{path.name} cannot be checked here",
            why="the tokenizers package is not installed",
            fix="pip install 'ondevice-toolkit[convert]'",
        ) from error
    try:
        Tokenizer.from_buffer(content)
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise damaged_json(path, f"the tokenizers library refuses it: {str(error)[:200]}") from error


def chat_template_from_hf(directory: Path) -> str | None:
    """The default chat template: chat_template.jinja, else tokenizer_config.json; None for a base model."""
    path = directory / "chat_template.jinja"
    if path.exists():
        try:
            text = _small_file(path, _MAX_TEMPLATE_BYTES).decode("utf-8")
            return text if text.strip() else None
        except UnicodeDecodeError as error:
            raise FormatError("chat_template.jinja is not UTF-8 text", why=str(error), fix="download it again") from error
    template = _optional_json(directory / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise damaged_json(directory / "tokenizer_config.json", "chat_template is neither text nor a list with a default")
    if template is None or not template.strip():
        return None
    try:
        template.encode("utf-8")
    except UnicodeEncodeError as error:
        raise damaged_json(directory / "tokenizer_config.json", "chat_template holds half of a character") from error
    return template


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json_object(path, max_bytes=_MAX_CONFIG_BYTES) if path.exists() else {}


def _small_file(path: Path, max_bytes: int) -> bytes:
    size = path.stat().st_size
    if size > max_bytes:
        raise FormatError(f"{path.name} is too large", why=f"{size} bytes; {max_bytes} are allowed", fix="download it again")
    return path.read_bytes()


def _check_vocabulary(path: Path, data: Mapping[str, Any], vocab_size: int) -> None:
    """Every id has a row of embeddings and one text; every merge joins two tokens into a third."""
    model = data.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list):
        raise damaged_json(path, "it has no model with a vocab")
    if model.get("type", "BPE") != "BPE" or not isinstance(model["vocab"], dict):
        raise UnsupportedModelError(
            f"a tokenizer of type {str(model.get('type'))[:40]} is not supported",
            why="the supported families all use BPE",
            fix="use a checkpoint of a supported family with its own tokenizer",
        )
    vocabulary: dict[str, int] = dict(model["vocab"])
    for token in _added_tokens(path, data):
        vocabulary[token["content"]] = token["id"]
    ids = list(vocabulary.values())
    if not ids or not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < vocab_size for i in ids):
        raise damaged_json(path, f"it has token ids outside the {vocab_size} rows of embeddings")
    if len(set(ids)) != len(ids):
        raise damaged_json(path, f"{len(ids) - len(set(ids))} token ids are given twice")
    _check_merges(path, model, vocabulary)


def _check_merges(path: Path, model: Mapping[str, Any], vocabulary: Mapping[str, int]) -> None:
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise damaged_json(path, "its model has no merges")
    for merge in merges:
        pair = tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) if isinstance(merge, list) else ()
        if len(pair) != 2 or not all(isinstance(part, str) and part in vocabulary for part in pair) or "".join(pair) not in vocabulary:
            raise damaged_json(path, f"the merge {str(merge)[:60]!r} does not join two tokens into a third")


def _added_tokens(path: Path, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    tokens = data.get("added_tokens") or []
    if not isinstance(tokens, list):
        raise damaged_json(path, "added_tokens is no list")
    for token in tokens:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str) or not isinstance(token.get("id"), int):
            raise damaged_json(path, f"the added token {str(token)[:80]} has no content or id")
    return tokens


def _parts(node: Any, key: str) -> list[Mapping[str, Any]]:
    """A tokenizer component and everything a Sequence of them holds, flattened; unknown shapes are left out."""
    if not isinstance(node, Mapping):
        return []
    children = node.get(key)
    inner = [part for child in children for part in _parts(child, key)] if isinstance(children, list) else []
    return [node, *inner]


def _kind(data: Mapping[str, Any], origin: str) -> TokenizerKind:
    splitters = _parts(data.get("pre_tokenizer"), "pretokenizers")
    if any(part.get("type") == "ByteLevel" for part in splitters):
        return "bpe-byte-level"
    normalizers = _parts(data.get("normalizer"), "normalizers")
    marks_spaces = any(part.get("type") == "Replace" and part.get("content") == SPACE for part in normalizers)
    if marks_spaces or any(part.get("type") == "Metaspace" for part in splitters):
        return "sentencepiece"
    raise UnsupportedModelError(
        f"the tokenizer of {origin} is of no kind this reads",
        why="it neither works on bytes (ByteLevel) nor marks spaces with U+2581 (SentencePiece)",
        fix="use a checkpoint of a supported family with its own tokenizer",
    )


def _has_space_prefix(data: Mapping[str, Any]) -> bool:
    prepends = any(part.get("type") == "Prepend" for part in _parts(data.get("normalizer"), "normalizers"))
    splitters = _parts(data.get("pre_tokenizer"), "pretokenizers")
    return prepends or any(p.get("type") == "Metaspace" and p.get("prepend_scheme", "always") != "never" for p in splitters)


def _adds_bos(data: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether the post-processor puts a special token first, or the config asks the tokenizer class to."""
    for part in _parts(data.get("post_processor"), "processors"):
        template = part.get("single")
        if isinstance(template, list) and template and isinstance(template[0], Mapping) and "SpecialToken" in template[0]:
            return True
    return config.get("add_bos_token") is True
