"""The tokenizer files of a bundle, written so that onnxruntime-genai reads them like the checkpoint's tokenizer.

Its tokenizer follows a tokenizer.json only in part. Three things are said in a way it understands, without a change of meaning:
which algorithm it is (`tokenizer_class` decides), that each digit stands alone (it passes over the pre-tokenizer `Digits`), and
runs of spaces among the added tokens (it looks for them in the text as it came, before spaces become U+2581). Whether that is
enough is for the proof to say (`onnx_proof`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from converters.checkpoint import TokenizerFiles
from converters.read.piece_merges import SPACE
from toolkit.errors import FormatError

# Names of its classes that mean byte-level BPE, and SentencePiece-like BPE with and without a space put first.
BYTE_LEVEL_CLASS, PIECE_CLASS, DUMMY_PREFIX_CLASS = "GPT2Tokenizer", "GemmaTokenizer", "LlamaTokenizer"
DIGIT = r"\p{N}"
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class WrittenTokenizer:
    """One way to write the files.

    Args:
        tokenizer_json: tokenizer.json.
        config: tokenizer_config.json, without a chat template.
        rewrites: What was said differently, in words.
    """

    tokenizer_json: bytes
    config: dict[str, Any]
    rewrites: tuple[str, ...]


def ways_to_write(files: TokenizerFiles, context_length: int) -> Iterator[WrittenTokenizer]:
    """The files in every way worth proving, the likeliest first.

    Raises:
        FormatError: There is no tokenizer.json, or it is damaged.
    """
    tokenizer_json = files.require_json()
    try:
        data = json.loads(tokenizer_json)
        rewrites = _rewrite(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError("tokenizer.json cannot be read", why=str(error)[:200], fix="download the checkpoint again") from error
    named = str(files.config.get("tokenizer_class", ""))
    texts = [(json.dumps(data, ensure_ascii=False).encode(), rewrites)] if rewrites else []
    for content, notes in (*texts, (tokenizer_json, ())):
        for chosen in dict.fromkeys((*_classes(files), named)):
            if chosen:
                config = files.config | {"tokenizer_class": chosen, "model_max_length": context_length}
                renamed = () if chosen == named else (f"tokenizer_class is {chosen}",)
                yield WrittenTokenizer(content, config, (*notes, *renamed))


def _classes(files: TokenizerFiles) -> tuple[str, ...]:
    if files.kind == "bpe-byte-level":
        return (BYTE_LEVEL_CLASS,)
    return (DUMMY_PREFIX_CLASS, PIECE_CLASS) if files.added_space_prefix else (PIECE_CLASS, DUMMY_PREFIX_CLASS)


def _rewrite(data: dict[str, Any]) -> tuple[str, ...]:
    """Change a parsed tokenizer.json in place; returns what was done, in words."""
    notes = []
    if _has_single_digits(data.get("pre_tokenizer") or {}):
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [_split(DIGIT), _split(GPT2_SPLIT), _bytes_only()]}
        notes.append("digits are split by an expression")
    runs = [token for token in data.get("added_tokens") or () if token["content"] and set(token["content"]) == {SPACE}]
    for token in runs:
        token["content"] = " " * len(token["content"])
    if runs:
        notes.append(f"{len(runs)} added tokens of spaces are written with spaces")
    return tuple(notes)


def _has_single_digits(pre_tokenizer: dict[str, Any]) -> bool:
    """Whether a text is cut at each digit and then as GPT-2 cuts it, and nothing else."""
    parts = pre_tokenizer.get("pretokenizers")
    if pre_tokenizer.get("type") != "Sequence" or not isinstance(parts, list) or len(parts) != 2:
        return False
    digits, byte_level = parts
    cuts_digits = (digits.get("type"), digits.get("individual_digits")) == ("Digits", True)
    return cuts_digits and _cuts_like_gpt2(byte_level)


def _cuts_like_gpt2(part: dict[str, Any]) -> bool:
    return (part.get("type"), part.get("use_regex", True), part.get("add_prefix_space")) == ("ByteLevel", True, False)


def _split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _bytes_only() -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
