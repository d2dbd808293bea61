"""BPE merges recovered from a SentencePiece vocabulary."""

from __future__ import annotations

from converters.checkpoint import Piece

SPACE = "\u2581"
_NORMAL, _USER_DEFINED = 1, 4


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
