"""Token ids to text, from a bundle's tokenizer.json alone: byte-level BPE needs no library to be read backwards."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from toolkit.errors import FormatError
from toolkit.json_depth import check_json_depth

MAX_TOKENIZER_BYTES = 32 * 2**20


def byte_of_character() -> dict[str, int]:
    """Which byte each character of a byte-level vocabulary stands for.

    Printable Latin-1 characters stand for themselves, the other 68 bytes, in order, for the characters from U+0100 on (GPT-2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


class WhisperVocabulary:
    """The bytes of each text token.

    Args:
        path: tokenizer.json of a bundle, whose hash was checked.

    Raises:
        FormatError: It holds no byte-level vocabulary.
    """

    def __init__(self, path: Path) -> None:
        try:
            if path.stat().st_size > MAX_TOKENIZER_BYTES:
                raise ValueError(f"it is larger than {MAX_TOKENIZER_BYTES} bytes")
            text = path.read_text("utf-8")
            check_json_depth(text)
            vocab = json.loads(text)["model"]["vocab"]
            table = byte_of_character()
            self._bytes = {int(token_id): bytes(table[char] for char in piece) for piece, token_id in vocab.items() if piece[:2] != "<|"}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"[:200]
            raise FormatError(
                f"{path.name} is no vocabulary of Whisper", why=why, fix="copy the bundle again, or convert it again"
            ) from error

    def text(self, token_ids: Iterable[int]) -> str:
        """The text of tokens; special and unknown ones say nothing. Bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self._bytes.get(token_id, b"") for token_id in token_ids).decode("utf-8", "replace")
