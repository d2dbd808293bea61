"""Messages between the host and an engine's process: four bytes of length, then JSON. Neither side trusts what it reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from toolkit.json_depth import check_json_depth

MAX_FRAME_BYTES = 64 * 2**20
_LENGTH_BYTES = 4


class FrameError(Exception):
    """The other side wrote what is no message: its memory is damaged, or something else writes into the pipe."""


def pack_frame(message: dict[str, Any]) -> bytes:
    """One message as bytes.

    Raises:
        FrameError: It is larger than 64 MiB.
    """
    data = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(data) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(data)} bytes is too long")
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


class FrameReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Take what was read; yields each message that is complete.

        Raises:
            FrameError: It is no message.
        """
        self._held += data
        while len(self._held) >= _LENGTH_BYTES:
            size = int.from_bytes(self._held[:_LENGTH_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                raise FrameError(f"a message of {size} bytes was announced; at most {MAX_FRAME_BYTES} are allowed")
            if len(self._held) < _LENGTH_BYTES + size:
                return
            data = bytes(self._held[_LENGTH_BYTES : _LENGTH_BYTES + size])
            del self._held[: _LENGTH_BYTES + size]
            yield _message(data)


def _message(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode("utf-8")
        if text.count("[") + text.count("{") > 64:  # a message of few brackets cannot nest deep; most have a handful
            check_json_depth(text)
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a message is no JSON: {str(error)[:100]}") from error
    if not isinstance(message, dict):
        raise FrameError(f"a message is no object but {type(message).__name__}")
    return message
