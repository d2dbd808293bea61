"""What a long conversion tells its user: on stderr, as a live line on a terminal, as plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO


class Step(Protocol):
    """One running stage, which may count what it has done."""

    def advance(self, n: float = 1.0) -> None:
        """Say that `n` more of the stage's `total` units are done."""


class Progress(Protocol):
    """Where a stage reports to. Targets receive one and need not know if it is a terminal, a log or nothing."""

    def stage(self, title: str, total: float | None = None) -> AbstractContextManager[Step]:
        """Announce a stage; its end, and the seconds it took, are reported when the block is left."""

    def note(self, text: str) -> None:
        """Report one fact: a cache that was used, a leaner path that was taken."""


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


class PlainLines:
    """A `Progress` for logs and pipes: one line when a stage starts, one when it ends."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    @contextmanager
    def stage(self, title: str, total: float | None = None) -> Iterator[Step]:
        started = time.monotonic()
        self._print(f"{title} ...")
        try:
            yield _Uncounted()
        except BaseException:
            self._print(f"{title}: stopped after {time.monotonic() - started:.1f} s")
            raise
        self._print(f"{title}: {time.monotonic() - started:.1f} s")

    def note(self, text: str) -> None:
        self._print(f"  {text}")
