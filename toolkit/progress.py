"""What long work tells its user: on stderr, as live bars on a terminal, as plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TextIO

from toolkit.units import format_bytes

_LINE_EVERY_S = 5.0


class Step(Protocol):
    """One running stage, which may count what it has done."""

    def advance(self, n: float = 1.0) -> None:
        """Say that `n` more of the stage's `total` units are done."""


class Progress(Protocol):
    """Where a stage reports to. The work need not know if it is a terminal, a log or nothing."""

    def stage(self, title: str, total: float | None = None) -> AbstractContextManager[Step]:
        """Announce a stage of `total` units (bytes, in downloads); its end is reported when the block is left."""

    def note(self, text: str) -> None:
        """Report one fact: a cache that was used, a source that failed."""


class _Uncounted:
    def advance(self, n: float = 1.0) -> None:
        """Nothing to draw."""


class Silent:
    """A `Progress` that says nothing, for library use and tests."""

    @contextmanager
    def stage(self, title: str, total: float | None = None) -> Iterator[Step]:
        yield _Uncounted()

    def note(self, text: str) -> None:
        """Said to nobody."""


class _LineStep:
    """Counts bytes and prints a line now and then, never more often than every five seconds."""

    def __init__(self, title: str, total: float | None, stream: TextIO) -> None:
        self._title, self._total, self._stream = title, total, stream
        self._done, self._printed_at = 0.0, time.monotonic()

    def advance(self, n: float = 1.0) -> None:
        self._done += n
        if self._total and time.monotonic() - self._printed_at >= _LINE_EVERY_S:
            self._printed_at = time.monotonic()
            share = 100 * self._done / self._total
            print(f"  {self._title}: {format_bytes(int(self._done))}, {share:.0f} %", file=self._stream, flush=True)


class ByteLines:
    """A `Progress` for logs and pipes whose units are bytes: a line at the start, every five seconds, and at the end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    @contextmanager
    def stage(self, title: str, total: float | None = None) -> Iterator[Step]:
        size = f" ({format_bytes(int(total))})" if total else ""
        print(f"{title}{size}", file=self._stream, flush=True)
        yield _LineStep(title, total, self._stream)

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class ByteBars:
    """A `Progress` for terminals whose units are bytes: one live bar a stage, drawn by rich."""

    def __init__(self, console: Any) -> None:
        self._console = console

    @contextmanager
    def stage(self, title: str, total: float | None = None) -> Iterator[Step]:
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(20), DownloadColumn(binary_units=True), TimeRemainingColumn(compact=True))
        with Bars(*columns, console=self._console) as bars:
            yield _BarStep(bars, bars.add_task(title, total=total))

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)


class _BarStep:
    def __init__(self, bars: Any, task_id: Any) -> None:
        self._bars, self._task_id = bars, task_id

    def advance(self, n: float = 1.0) -> None:
        self._bars.advance(self._task_id, n)


def byte_progress(stream: TextIO | None = None) -> Progress:
    """Bars when `stream` (stderr) is a terminal and rich is installed, plain lines otherwise."""
    stream = stream or sys.stderr
    if stream.isatty():
        try:
            from rich.console import Console
        except ModuleNotFoundError:
            return ByteLines(stream)
        return ByteBars(Console(file=stream))
    return ByteLines(stream)
