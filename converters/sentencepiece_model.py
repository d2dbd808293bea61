"""SentencePiece models built from a vocabulary: what a LiteRT bundle carries instead of a 33 MB tokenizer.json.

Three sources give the same `Vocabulary`: GGUF's pieces, a tokenizer.model, and a Hugging Face tokenizer.json whose model is
BPE with byte fallback. Whether the result encodes like the checkpoint's tokenizer is not assumed here but proven in
`converters.tokenizer`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from converters.checkpoint import Piece
from toolkit.errors import FormatError

SPACE = "\u2581"
_MAX_PIECES = 2**21


class PieceType(IntEnum):
    """Types of sentencepiece_model.proto, which GGUF's tokenizer.ggml.token_type shares."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """A BPE vocabulary with byte fallback; the index of a piece is its token id.

    Args:
        pieces: Spaces may be written as U+2581 or as spaces.
        add_dummy_prefix: Whether a text is encoded as if it began with a space (Llama 2 does, Gemma does not).
    """

    pieces: Sequence[Piece]
    add_dummy_prefix: bool = False


def build_sentencepiece(vocabulary: Vocabulary, *, merges_runs: bool = False) -> bytes:
    """Serialize a vocabulary as a SentencePiece BPE model that encodes like the Hugging Face tokenizer of the same vocabulary.

    Choices that make the ids equal, each found by comparing ids:
    - Control pieces become user defined: only those are recognised inside a text, and chat templates are text.
    - User defined runs of U+2581 are cut out of a text longest first, as SentencePiece does (40 spaces are 31 + 9); with
      `merges_runs` they merge before all other pieces, as they do where a tokenizer.json lists them as added tokens, which are
      matched before spaces are replaced (40 spaces are 16 + 24).
    - The unknown piece must have type UNKNOWN, or no model loads.

    Two inputs are still encoded differently, both spelled out by somebody who writes about tokenizers: the unknown token's own
    text (letters instead of its id), and U+2581 itself twice in a row (taken for spaces, which it stands for in a piece).

    Args:
        vocabulary: Pieces by id.
        merges_runs: What happens to user defined runs of spaces, see above.

    Raises:
        FormatError: There is no unknown piece, a piece is empty or listed twice, or the size is out of range.
    """
    from sentencepiece import sentencepiece_model_pb2 as proto

    pieces = _checked(vocabulary.pieces)
    unknown_id = _unknown_id(pieces)
    model = proto.ModelProto()
    best = max((piece.score for piece in pieces if piece.type == PieceType.NORMAL), default=0.0)
    for token_id, piece in enumerate(pieces):
        text, score, kind = piece.text.replace(" ", SPACE), piece.score, piece.type
        if token_id == unknown_id:
            kind = PieceType.UNKNOWN
        elif merges_runs and kind == PieceType.USER_DEFINED and len(text) > 1 and not text.strip(SPACE):
            kind, score = PieceType.NORMAL, best + 1.0 + 1.0 / len(text)
        elif kind in (PieceType.CONTROL, PieceType.UNKNOWN):
            kind = PieceType.USER_DEFINED
        model.pieces.add(piece=text, score=score, type=int(kind))
    trainer = model.trainer_spec
    trainer.model_type, trainer.byte_fallback, trainer.vocab_size = 2, True, len(pieces)
    trainer.unk_id, trainer.unk_piece = unknown_id, pieces[unknown_id].text
    trainer.bos_id = trainer.eos_id = trainer.pad_id = -1
    normalizer = model.normalizer_spec
    normalizer.name, normalizer.add_dummy_prefix = "identity", vocabulary.add_dummy_prefix
    normalizer.remove_extra_whitespaces, normalizer.escape_whitespaces = False, True
    return bytes(model.SerializeToString())


def vocabulary_from_model(data: bytes) -> Vocabulary | None:
    """Read a tokenizer.model; None if it is no BPE model, or normalizes text by a table (NFKC and the like).

    Raises:
        FormatError: The bytes are no SentencePiece model.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2 as proto

    model = proto.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise _damaged("tokenizer.model", str(error)) from error
    if model.trainer_spec.model_type != 2 or model.normalizer_spec.precompiled_charsmap:
        return None
    pieces = [Piece(piece.piece, piece.score, piece.type) for piece in model.pieces]
    return Vocabulary(pieces, model.normalizer_spec.add_dummy_prefix)


def vocabulary_from_tokenizer_json(data: bytes) -> Vocabulary | None:
    """Derive a vocabulary from a Hugging Face tokenizer.json: a piece's score is minus the rank of its first merge.

    Returns None if the model is no BPE with byte fallback, or its spaces do not become U+2581.

    Raises:
        FormatError: The bytes are no tokenizer.json.
    """
    try:
        tokenizer = json.loads(data)
        model = tokenizer["model"]
        if model["type"] != "BPE" or not model.get("byte_fallback") or SPACE not in json.dumps(tokenizer["decoder"], ensure_ascii=False):
            return None
        return Vocabulary(_ranked_pieces(tokenizer), _has_dummy_prefix(tokenizer))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise _damaged("tokenizer.json", f"{type(error).__name__}: {error}") from error


def _ranked_pieces(tokenizer: dict[str, Any]) -> list[Piece]:
    model, added = tokenizer["model"], {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens") or ()}
    ids: dict[str, int] = {**model["vocab"], **added}
    size = max(ids.values()) + 1
    if not 0 < size <= _MAX_PIECES or min(ids.values()) < 0:
        raise ValueError(f"token ids reach {size - 1}")
    score: dict[str, float] = {}
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        score.setdefault(left + right, -float(len(score)))
    unused = [Piece(f"<no_token_{token_id}>", -float(size), PieceType.UNUSED) for token_id in range(size)]
    for text, token_id in ids.items():
        if text == model.get("unk_token"):
            kind = PieceType.UNKNOWN
        elif text in added:
            kind = PieceType.USER_DEFINED
        else:
            kind = PieceType.BYTE if _is_byte(text) else PieceType.NORMAL
        unused[token_id] = Piece(text, score.get(text, -float(size)), kind)
    return unused


def _has_dummy_prefix(tokenizer: dict[str, Any]) -> bool:
    """Whether the normalizer prepends U+2581 or a Metaspace pre-tokenizer does."""
    steps: list[dict[str, Any]] = []
    for stage, inner in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        step = tokenizer.get(stage) or {}
        steps += [step, *step.get(inner, ())]
    return any(
        step.get("type") == "Prepend" or (step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in steps
    )


def _is_byte(text: str) -> bool:
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">")


def _checked(pieces: Sequence[Piece]) -> Sequence[Piece]:
    if not 0 < len(pieces) <= _MAX_PIECES:
        raise _damaged("the vocabulary", f"it has {len(pieces)} pieces; 1 to {_MAX_PIECES} are possible")
    seen: set[str] = set()
    for token_id, piece in enumerate(pieces):
        text = piece.text.replace(" ", SPACE)
        if not text or text in seen:
            raise _damaged("the vocabulary", f"token {token_id} {piece.text!r} is {'listed twice' if text else 'empty'}")
        seen.add(text)
    return pieces


def _unknown_id(pieces: Sequence[Piece]) -> int:
    by_type = [token_id for token_id, piece in enumerate(pieces) if piece.type == PieceType.UNKNOWN]
    by_text = [token_id for token_id, piece in enumerate(pieces) if piece.text == "<unk>"]
    for found in (by_type, by_text):
        if len(found) == 1:
            return found[0]
    raise _damaged("the vocabulary", "it has no single unknown piece (type 2, or the text <unk>)")


def _damaged(what: str, why: str) -> FormatError:
    return FormatError(
        f"{what} cannot be read as a tokenizer", why=why, fix="download the checkpoint again, or convert from its original source"
    )
