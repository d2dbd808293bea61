"""Streams of LiteRT-LM's C API, started so that the caller is never held.

litert_lm's own generators put each piece through a queue that nobody else can wake, so a cancelled caller would wait for the
end of a whole prefill, and they drop why a stream ended. These take the same C calls and hand each event to a sink.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from typing import Any

from toolkit.backends.base import Sink, StreamEnd


class StreamHandle:
    """What must live as long as the engine may still call back: the ctypes callback and the prompt's buffers."""

    def __init__(self, library: Any, sink: Sink, read: Callable[[bytes], str], release: Callable[[], None] | None = None) -> None:
        from litert_lm._ffi import STREAM_CALLBACK_TYPE

        self._library, self._sink, self._read, self._release = library, sink, read, release
        self.has_ended = False
        self.callback = STREAM_CALLBACK_TYPE(self._on_chunk)

    def _on_chunk(self, _data: Any, chunk: Any) -> None:
        """Runs on the engine's thread for every piece."""
        error = self._library.litert_lm_stream_chunk_get_error(chunk)
        if error is None and (text := self._library.litert_lm_stream_chunk_get_text(chunk)):
            self._sink(self._read(text))
        if error is not None or self._library.litert_lm_stream_chunk_is_final(chunk):
            self.has_ended = True
            self._sink(StreamEnd(error.decode("utf-8", errors="replace") if error else None))

    def release(self) -> None:
        """Free the prompt's buffers; only when the stream has ended or its session is gone."""
        if self._release is not None:
            self._release()
            self._release = None


def start_chat(conversation: Any, text: str, max_tokens: int, sink: Sink) -> StreamHandle:
    """Send a user message to a `litert_lm.Conversation`.

    Raises:
        RuntimeError: The C library refused it; its last error message says why.
    """
    library = conversation._lib
    handle = StreamHandle(library, sink, _message_text)
    options = conversation._create_optional_args(max_output_tokens=max_tokens)
    try:
        message = json.dumps({"role": "user", "content": text})
        status = library.litert_lm_conversation_send_message_stream(conversation._ptr, message, "{}", options, handle.callback, None)
    finally:
        conversation._delete_optional_args(options)
    if status != 0:
        raise RuntimeError(f"the message was refused with status {status}")
    return handle


def start_plain(session: Any, text: str, sink: Sink) -> StreamHandle:
    """Prefill `text` in a `litert_lm.Session` as it is and continue it.

    Raises:
        RuntimeError: The C library refused it; its last error message says why.
    """
    from litert_lm._ffi import InputDataType

    library, data = session._lib, text.encode("utf-8")
    pointer = library.litert_lm_input_data_create(InputDataType.TEXT, data, len(data))
    handle = StreamHandle(library, sink, _plain_text, release=lambda: library.litert_lm_input_data_delete(pointer))
    inputs = (ctypes.c_void_p * 1)(pointer)
    status = library.litert_lm_session_generate_content_stream(session._ptr, inputs, 1, handle.callback, None)
    if status != 0:
        handle.release()
        raise RuntimeError(f"the prompt was refused with status {status}")
    return handle


def _plain_text(chunk: bytes) -> str:
    return chunk.decode("utf-8", errors="replace")


def _message_text(chunk: bytes) -> str:
    """The text in one piece of an answer, which is a message as JSON with a list of parts."""
    content = json.loads(chunk)["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part.get("type") == "text")
