"""What a long conversion tells its user, on stderr: a live line on a terminal, plain lines in a log.

`Progress`, `Step` and `Silent` are the toolkit's; here are the two for stages that last minutes and rarely count.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from toolkit.progress import Progress, Silent, Step

__all__ = ["Progress", "Silent", "StageBars", "StageLines", "Step", "stage_progress"]


class _LineStep:
    """Counts units and prints each tenth of the total once."""

    def __init__(self, title: str, total: float | None, stream: TextIO) -> None:
        self._title, self._total, self._stream = title, total, stream
        self._done, self._tenth = 0.0, 0

    def advance(self, n: float = 1.0) -> None:
        self._done += n
        tenth = min(9, int(10 * self._done / self._total)) if self._total else 0
        if tenth > self._tenth:
            self._tenth = tenth
            print(f"  {self._title}: {10 * tenth} %", file=self._stream, flush=True)


class StageLines:
    """A `Progress` for logs and pipes: one line when a stage starts, one with its seconds when it ends."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    @contextmanager
    def stage(self, title: str, total: float | None = None) -> Iterator[Step]:
        started = time.monotonic()
        self.note(f"{title} ...")
        try:
            yield _LineStep(title, total, self._stream)
        except BaseException:
            self.note(f"{title}: stopped after {time.monotonic() - started:.1f} s")
            raise
        self.note(f"{title}: {time.monotonic() - started:.1f} s")

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class _BarStep:
    def __init__(self, bars: Any, task_id: Any) -> None:
        self._bars, self._task_id = bars, task_id

    def advance(self, n: float = 1.0) -> None:
        self._bars.advance(self._task_id, n)


class StageBars:
    """A `Progress` for terminals: a spinner and a clock for each running stage, a bar where units are counted.

    One live display serves all stages, of whatever thread; it stands while at least one runs.
    """

    def __init__(self, console: Any) -> None:
        self._console = console
        self._bars: Any = None
        self._n_running = 0
        self._lock = threading.Lock()

    @contextmanager
    def stage(self, title: str, total: float | None = None) -> Iterator[Step]:
        started = time.monotonic()
        bars = self._enter()
        task_id = bars.add_task(title, total=total)
        try:
            yield _BarStep(bars, task_id)
        finally:
            bars.remove_task(task_id)
            self._leave()
        self.note(f"{title}: {time.monotonic() - started:.1f} s")

    def _enter(self) -> Any:
        with self._lock:
            if self._n_running == 0:
                self._bars = self._new_bars()
                self._bars.start()
            self._n_running += 1
            return self._bars

    def _leave(self) -> None:
        with self._lock:
            self._n_running -= 1
            if self._n_running == 0:
                self._bars.stop()

    def _new_bars(self) -> Any:
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
        return Bars(*columns, console=self._console, transient=True)

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)


def stage_progress(stream: TextIO | None = None) -> Progress:
    """A live display when `stream` (stderr) is a terminal and rich is installed, plain lines otherwise."""
    stream = stream or sys.stderr
    if stream.isatty():
        try:
            from rich.console import Console
        except ModuleNotFoundError:
            return StageLines(stream)
        return StageBars(Console(file=stream))
    return StageLines(stream)
