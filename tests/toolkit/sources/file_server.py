"""A loopback web server that can break a transfer on purpose, for tests of downloads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """Serves `files` by path, with ranges; answers `refusals` (path -> status, headers) first.

    `cuts[path]` is how many transfers of that path to break after half of the bytes asked for, or at once when
    `cuts_at_once` is set.
    """

    def __init__(self, files: dict[str, bytes], *, headers: dict[str, dict[str, str]] | None = None) -> None:
        self.files = files
        self.headers = headers or {}
        self.cuts: dict[str, int] = {}
        self.cuts_at_once = False
        self.refusals: dict[str, tuple[int, dict[str, str]]] = {}
        self.requests: list[tuple[str, str]] = []
        self.url = ""

    def transfers(self, path: str) -> int:
        """How often the body of `path` was asked for."""
        return self.requests.count(("GET", path))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        served = self.server.served
        path = self.path.partition("?")[0]
        served.requests.append((self.command, path))
        if path in served.refusals or path not in served.files:
            status, headers = served.refusals.get(path, (404, {}))
            self._head(status, {**headers, "Content-Length": "0"})
            return
        body, status, headers = served.files[path], 200, {"Accept-Ranges": "bytes", **served.headers.get(path, {})}
        if (asked := self.headers.get("Range", "")).startswith("bytes=") and asked.endswith("-"):
            start = int(asked[6:-1])
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            body, status = body[start:], 206
        self._head(status, {**headers, "Content-Length": str(len(body))})
        if not with_body:
            return
        if served.cuts.get(path):
            served.cuts[path] -= 1
            self.wfile.write(b"" if served.cuts_at_once else body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            return
        self.wfile.write(body)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Tests look at `requests` instead."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    served: FileServer


@contextmanager
def serving(served: FileServer) -> Iterator[FileServer]:
    """Run the server on a free loopback port while the block runs."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.served = served
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
