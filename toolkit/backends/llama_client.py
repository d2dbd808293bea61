"""What a llama.cpp server on this machine is asked, over loopback: tokens, templates, answers as they are generated."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from toolkit.errors import EngineError, one_line

_ANSWER_S = 900.0  # of silence: a long prompt on a slow board takes minutes before its first token
_POLL_S = 0.05


class LlamaClient:
    """One server. Used from any thread: each request has a connection of its own."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._host, self._port = host, port
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}

    def wait_until_ready(self, limit_s: float, died: Callable[[], str | None]) -> None:
        """Wait until the model is loaded.

        Args:
            limit_s: How long at most.
            died: Why the server has ended, or None while it lives.

        Raises:
            EngineError: It ended, or takes longer.
        """
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if (why := died()) is not None:
                raise EngineError(
                    "llama.cpp's server ended while it was starting",
                    why=why,
                    fix="if that is of the file, convert the model again; else build llama.cpp again for this machine",
                )
            with suppress(OSError, http.client.HTTPException):
                if self._request("GET", "/health", None, 5.0).status == 200:
                    return
            time.sleep(_POLL_S)
        raise EngineError(
            "llama.cpp's server does not get ready", why=f"it was given {limit_s:g} s", fix="use a smaller model or a smaller --context"
        )

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object a request is answered with.

        Raises:
            EngineError: The server refused it, or is gone.
        """
        try:
            response = self._request("POST", path, body, _ANSWER_S)
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise _gone(error) from error
        if response.status != 200:
            raise EngineError("llama.cpp refused a request", why=error_of(data), fix="toolkit verify BUNDLE checks the file")
        answer = json.loads(data)
        return answer if isinstance(answer, dict) else {}

    def stream(self, path: str, body: Mapping[str, Any]) -> LlamaEvents:
        """Begin an answer."""
        return LlamaEvents(http.client.HTTPConnection(self._host, self._port, timeout=_ANSWER_S), path, body, self._headers)

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        connection.request(method, path, None if body is None else json.dumps(body).encode(), self._headers | {"Connection": "close"})
        return connection.getresponse()


class LlamaEvents:
    """The events of one answer. `cancel` may be called from any thread, also before the first event."""

    def __init__(self, connection: http.client.HTTPConnection, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self._connection, self._path, self._body, self._headers = connection, path, body, headers
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.is_cancelled = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """JSON objects, the last of which has a true `stop` unless the answer is cancelled.

        Raises:
            EngineError: The server refused the request, failed, or is gone.
        """
        try:
            self._connection.connect()
            with self._lock:
                self._socket = self._connection.sock  # the connection forgets it once it has answered
                if self.is_cancelled:
                    return
            self._connection.request("POST", self._path, json.dumps(self._body).encode(), dict(self._headers))
            response = self._connection.getresponse()
            if response.status != 200:
                raise EngineError(
                    "llama.cpp refused the prompt", why=error_of(response.read()), fix="shorten it, or use a larger --context"
                )
            has_stopped = False
            for event in self._objects(response):
                has_stopped = bool(event.get("stop"))
                yield event
            if not has_stopped and not self.is_cancelled:  # the end of a cut connection looks like that of an answer
                raise _gone(EOFError("the connection ended in the middle of an answer"))
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not self.is_cancelled:
                raise _gone(error) from error
        finally:
            with self._lock:
                self._socket = None
            self._connection.close()

    def _objects(self, response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        while line := response.readline():
            kind, _, text = line.decode("utf-8", errors="replace").strip().partition(":")
            if kind == "error" or (kind == "data" and text.lstrip().startswith('{"error"')):
                raise EngineError("llama.cpp failed while it was answering", why=error_of(text.encode()), fix="ask again")
            if kind == "data" and text.strip() != "[DONE]":
                event = json.loads(text)
                if isinstance(event, dict):
                    yield event

    def cancel(self) -> None:
        """End the answer: the server stops when it finds its listener gone."""
        with self._lock:
            self.is_cancelled = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)


def error_of(data: bytes) -> str:
    """The message in an error's body, in one line."""
    text = data.decode("utf-8", errors="replace")
    with suppress(ValueError, TypeError, KeyError):
        found = json.loads(text)
        inner = found["error"] if isinstance(found, dict) and "error" in found else found
        text = str(inner["message"])
    return " ".join(text.split())[:300] or "it gave no reason"


def _gone(error: BaseException) -> EngineError:
    return EngineError("llama.cpp's server does not answer", why=one_line(error), fix="ask again; if it stays, use a smaller --context")
