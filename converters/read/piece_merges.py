"""BPE merges recovered from a SentencePiece vocabulary, and scores recovered from merges."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from converters.checkpoint import Piece

SPACE = "\u2581"
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_BYTE_TEXT = re.compile(r"<0x[0-9A-F]{2}>")


def merges_from_pieces(pieces: list[Piece]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best first.

    SentencePiece merges the adjacent pair whose union scores highest. User-defined pieces win over any score, earlier
    ids first; then scores decide. Several pairs that make the same piece keep the longer left part first, the order
    Hugging Face's converter gives them.
    """
    ids = {piece.text: token_id for token_id, piece in enumerate(pieces) if piece.type in (_NORMAL, _USER_DEFINED)}
    order = sorted(ids.items(), key=lambda item: _rank(pieces[item[1]], item[1]))
    merges: list[tuple[str, str]] = []
    for text, _ in order:
        for cut in range(len(text) - 1, 0, -1):
            if text[:cut] in ids and text[cut:] in ids:
                merges.append((text[:cut], text[cut:]))
    return merges


def _rank(piece: Piece, token_id: int) -> tuple[int, float, int]:
    is_user_defined = piece.type == _USER_DEFINED
    return (0 if is_user_defined else 1, 0.0 if is_user_defined else -piece.score, token_id)


def pieces_from_merges(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], added_tokens: Sequence[Mapping[str, Any]], unknown: str | None
) -> list[Piece]:
    """The SentencePiece vocabulary behind a tokenizer.json: pieces by id, scored so that merges happen in the same order.

    A piece scores minus the rank of the first merge that makes it; one that no merge makes scores below all of them.
    Ids nobody uses become pieces of type UNUSED, so that an index stays an id.
    """
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    special = {token["content"]: bool(token.get("special")) for token in added_tokens}
    pieces = [Piece(f"<unused id {token_id}>", 0.0, _UNUSED) for token_id in range(max(vocabulary.values()) + 1)]
    for text, token_id in vocabulary.items():
        score = -float(ranks.get(text, len(merges) + token_id))
        pieces[token_id] = Piece(text, score, _type(text, special, unknown))
    return pieces


def _type(text: str, special: Mapping[str, bool], unknown: str | None) -> int:
    if text == unknown:
        return _UNKNOWN
    if text in special:
        return _CONTROL if special[text] else _USER_DEFINED
    return _BYTE if _BYTE_TEXT.fullmatch(text) else _NORMAL
