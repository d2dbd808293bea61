"""Text of tokens as they come: a character may be spread over several, and a space belong to the token before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_UNFINISHED = "\ufffd"
_MOST_HELD = 8  # tokens: a character has at most four bytes; what stays unfinished for longer is none


class IncrementalText:
    """Decodes one token after another; the pieces together are the text of them all.

    Each step decodes only the tokens since the piece before last, so its cost does not grow with the answer.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        """`before` are the tokens that the text follows: some tokenizers drop a space at the start of a text."""
        self._decode = decode
        self._ids = list(before)
        self._previous, self._shown = 0, len(self._ids)

    def add(self, token_id: int) -> str:
        """What can be shown after one more token; empty while a character is unfinished."""
        self._ids.append(token_id)
        piece, is_whole = self._piece()
        if not is_whole and len(self._ids) - self._shown <= _MOST_HELD:
            return ""
        self._forget()
        return piece

    def flush(self) -> str:
        """What is left at the end, bytes that became no character replaced."""
        piece, _ = self._piece()
        self._forget()
        return piece

    def _piece(self) -> tuple[str, bool]:
        shown = self._decode(self._ids[self._previous : self._shown])
        text = self._decode(self._ids[self._previous :])
        return text[len(shown) :], not text.endswith(_UNFINISHED)

    def _forget(self) -> None:
        self._ids = self._ids[self._shown :]
        self._previous, self._shown = 0, len(self._ids)
