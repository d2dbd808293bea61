"""The tokenizer inside a GGUF file, as a Hugging Face tokenizer.json.

GGUF keeps the vocabulary, token types and either merges (byte-level BPE) or scores (SentencePiece-like), but not the
text rules around them; those are put back here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.checkpoint import Piece, TokenizerFiles
from converters.read.bpe_pretokenizers import splitting_rule
from converters.read.piece_merges import SPACE, merges_from_pieces
from toolkit.errors import FormatError, UnsupportedModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_PREFIX = "tokenizer.ggml."
_SPECIAL_IDS = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id", "pad_token": "padding_token_id"}


def tokenizer_from_gguf(metadata: Mapping[str, Any], origin: str, vocab_size: int) -> TokenizerFiles:
    """Build the tokenizer of a GGUF file.

    Args:
        metadata: The file's metadata.
        origin: The file's name, for errors.
        vocab_size: Rows of the embedding table; the vocabulary may be smaller (padding), never larger.

    Raises:
        FormatError: Tokens, types, scores or merges are absent, of unequal length, repeated or point nowhere.
        UnsupportedModelError: A tokenizer model or splitting rule that is not known here.
    """
    pieces = _pieces(metadata, origin, vocab_size)
    model = metadata.get(_PREFIX + "model")
    if model == "gpt2":
        return _byte_level(metadata, origin, pieces)
    if model == "llama":
        return _sentencepiece(metadata, origin, pieces)
    raise UnsupportedModelError(
        f"{origin} has a tokenizer of kind {model!r}",
        why="byte-level BPE (gpt2) and SentencePiece-like BPE (llama) are read",
        fix="convert from the Hugging Face checkpoint, which carries its tokenizer.json",
    )


def _fail(origin: str, why: str) -> FormatError:
    return FormatError(f"{origin} has no usable tokenizer", why=why, fix="download it again, or use the Hugging Face checkpoint")


def _pieces(metadata: Mapping[str, Any], origin: str, vocab_size: int) -> list[Piece]:
    tokens = metadata.get(_PREFIX + "tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise _fail(origin, "tokenizer.ggml.tokens is missing or empty")
    if len(tokens) > vocab_size:
        raise _fail(origin, f"{len(tokens)} tokens, but only {vocab_size} rows of embeddings")
    types = _numbers(metadata, origin, "token_type", len(tokens), default=NORMAL)
    scores = _numbers(metadata, origin, "scores", len(tokens), default=0.0)
    if len(set(tokens)) != len(tokens):
        raise _fail(origin, f"{len(tokens) - len(set(tokens))} tokens appear twice")
    if not np.isfinite(scores).all():
        raise _fail(origin, "tokenizer.ggml.scores holds NaN or infinity")
    return [Piece(text, float(score), int(kind)) for text, score, kind in zip(tokens, scores.tolist(), types.tolist(), strict=True)]


def _numbers(metadata: Mapping[str, Any], origin: str, key: str, count: int, default: float) -> np.ndarray:
    values = metadata.get(_PREFIX + key)
    if values is None:
        return np.full(count, default)
    if not isinstance(values, np.ndarray) or values.shape != (count,):
        raise _fail(origin, f"tokenizer.ggml.{key} does not have {count} numbers")
    return values


def _byte_level(metadata: Mapping[str, Any], origin: str, pieces: list[Piece]) -> TokenizerFiles:
    rule = splitting_rule(str(metadata.get(_PREFIX + "pre", "gpt-2")))
    vocabulary = {piece.text: token_id for token_id, piece in enumerate(pieces)}
    merges = metadata.get(_PREFIX + "merges")
    if not isinstance(merges, list):
        raise _fail(origin, "tokenizer.ggml.merges is missing")
    pairs = [_pair(merge, vocabulary, origin) for merge in merges]
    model = {"unk_token": None, "byte_fallback": False, "fuse_unk": False, "ignore_merges": rule.ignore_merges}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    data = _document(pieces, model, vocabulary, pairs) | {
        "normalizer": rule.normalizer,
        "pre_tokenizer": rule.pre_tokenizer,
        "decoder": byte_level,
    }
    return _finished("bpe-byte-level", data, metadata, origin, pieces, add_bos_default=rule.adds_bos)


def _pair(merge: Any, vocabulary: Mapping[str, int], origin: str) -> tuple[str, str]:
    """`left right` as a pair; both and their union must be tokens, else the native tokenizer fails without a name."""
    left, separator, right = str(merge).partition(" ")
    if not separator or left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
        raise _fail(origin, f"the merge {str(merge)[:60]!r} does not join two tokens into a third")
    return left, right


def _sentencepiece(metadata: Mapping[str, Any], origin: str, pieces: list[Piece]) -> TokenizerFiles:
    if _PREFIX + "scores" not in metadata:
        raise _fail(origin, "tokenizer.ggml.scores is missing")
    spaced = [piece._replace(text=piece.text.replace(" ", SPACE)) if piece.type in (NORMAL, USER_DEFINED) else piece for piece in pieces]
    vocabulary = {piece.text: token_id for token_id, piece in enumerate(spaced)}
    if len(vocabulary) != len(spaced):
        raise _fail(origin, "two tokens differ only in how a space is written")
    unknown = _special_tokens(metadata, origin, pieces).get("unk_token")
    if unknown is None:
        raise _fail(origin, "tokenizer.ggml.unknown_token_id is missing")
    has_prefix = bool(metadata.get(_PREFIX + "add_space_prefix", True))
    model = {"unk_token": unknown, "byte_fallback": True, "fuse_unk": True, "ignore_merges": False}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    restore = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    prepend = {"type": "Prepend", "prepend": SPACE}
    data = _document(spaced, model, vocabulary, merges_from_pieces(spaced)) | {
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]} if has_prefix else replace,
        "pre_tokenizer": _isolated_runs(spaced),
        "decoder": {"type": "Sequence", "decoders": [*restore, strip] if has_prefix else restore},
    }
    return _finished("sentencepiece", data, metadata, origin, pieces, add_bos_default=True)


def _isolated_runs(pieces: list[Piece]) -> dict[str, Any] | None:
    """Cut out user-defined pieces that hold spaces, longest first, before anything merges: SentencePiece emits them whole.

    Added tokens cannot do it: those are matched on the text before its spaces are replaced.
    """
    runs = sorted((p.text for p in pieces if p.type == USER_DEFINED and SPACE in p.text), key=lambda text: (-len(text), text))
    pattern = "|".join(re.escape(text) for text in runs)
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False} if runs else None


def _document(pieces: list[Piece], model: dict[str, Any], vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(i, piece) for i, piece in enumerate(pieces) if piece.type in (UNKNOWN, CONTROL, USER_DEFINED)],
        "model": {
            "type": "BPE",
            "dropout": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            **model,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def _added(token_id: int, piece: Piece) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": piece.text, **flags, "special": piece.type != USER_DEFINED}


def _special_tokens(metadata: Mapping[str, Any], origin: str, pieces: list[Piece]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name, key in _SPECIAL_IDS.items():
        token_id = metadata.get(_PREFIX + key)
        if token_id is None:
            continue
        if not isinstance(token_id, int) or not 0 <= token_id < len(pieces):
            raise _fail(origin, f"tokenizer.ggml.{key} is {token_id!r}, the vocabulary has {len(pieces)} tokens")
        tokens[name] = pieces[token_id].text
    return tokens


def _finished(
    kind: Any, data: dict[str, Any], metadata: Mapping[str, Any], origin: str, pieces: list[Piece], *, add_bos_default: bool
) -> TokenizerFiles:
    special = _special_tokens(metadata, origin, pieces)
    add_bos = bool(metadata.get(_PREFIX + "add_bos_token", add_bos_default)) and "bos_token" in special
    data["post_processor"] = _bos_template(special["bos_token"], int(metadata[_PREFIX + "bos_token_id"])) if add_bos else None
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **special, "add_bos_token": add_bos, "clean_up_tokenization_spaces": False}
    return TokenizerFiles(
        kind=kind,
        tokenizer_json=json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode(),
        pieces=pieces if kind == "sentencepiece" else None,
        add_bos=add_bos,
        config=config,
        added_space_prefix=kind == "sentencepiece" and bool(metadata.get(_PREFIX + "add_space_prefix", True)),
    )


def _bos_template(bos: str, bos_id: int) -> dict[str, Any]:
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    text, second = ({"Sequence": {"id": name, "type_id": type_id}} for name, type_id in (("A", 0), ("B", 1)))
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, {"SpecialToken": {"id": bos, "type_id": 1}}, second],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }
