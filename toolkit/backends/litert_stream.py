"""Streams of LiteRT-LM's C API, started so that the caller is never held.

litert_lm's own generators put each piece through a queue that nobody else can wake, so a cancelled caller would wait for the
end of a whole prefill, and they drop why a stream ended. This takes the same C call and hands each event to a sink.
"""

from __future__ import annotations

import codecs
import ctypes
from typing import Any

from toolkit.backends.base import Sink, StreamEnd


class LiteRtStream:
    """One running stream: what must live as long as the engine may still call back.

    The engine cuts text between bytes: a character may come in two pieces, and a model may write bytes that are no
    character at all. (Through its Conversation API such a piece ends the process: it is put into JSON, whose writer
    aborts. So this uses the Session API, which passes bytes on as they are.)
    """

    def __init__(self, session: Any, text: str, sink: Sink) -> None:
        """Prefill `text` in a `litert_lm.Session` and continue it.

        Raises:
            RuntimeError: The C library refused it; its last error message says why.
        """
        from litert_lm._ffi import STREAM_CALLBACK_TYPE, InputDataType

        self._library, self._sink = session._lib, sink
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._callback = STREAM_CALLBACK_TYPE(self._on_chunk)
        self.has_ended = False
        data = text.encode("utf-8")
        self._input = self._library.litert_lm_input_data_create(InputDataType.TEXT, data, len(data))
        inputs = (ctypes.c_void_p * 1)(self._input)
        status = self._library.litert_lm_session_generate_content_stream(session._ptr, inputs, 1, self._callback, None)
        if status != 0:
            self.release()
            raise RuntimeError(f"the text was refused with status {status}")

    def _on_chunk(self, _data: Any, chunk: Any) -> None:
        """Runs on the engine's thread for every piece."""
        error = self._library.litert_lm_stream_chunk_get_error(chunk)
        if error is None and (text := self._library.litert_lm_stream_chunk_get_text(chunk)):
            self._sink(self._decoder.decode(text))
        if error is not None or self._library.litert_lm_stream_chunk_is_final(chunk):
            self.has_ended = True
            self._sink(self._decoder.decode(b"", final=True))
            self._sink(StreamEnd(error.decode("utf-8", errors="replace") if error else None))

    def release(self) -> None:
        """Free the prompt's buffer; only when the stream has ended or its session is gone."""
        pointer, self._input = self._input, None
        if pointer:
            self._library.litert_lm_input_data_delete(pointer)
