"""Holds an engine's process where it is, and keeps the time in which it could run.

On Linux by SIGSTOP and SIGCONT: whatever the engine does, it stops at once, a prefill as well, and the kernel ends it with its host all
the same. Elsewhere a stopped process whose host dies would stay for ever, so there it is told to wait before it passes text on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Hold:
    """Whether one process may run. All methods may be called from any thread."""

    def __init__(self, pid: Callable[[], int], tell: Callable[[str], None], *, by_signal: bool = sys.platform == "linux") -> None:
        """
        Args:
            pid: Of the process, which leads a group of its own; 0 when there is none.
            tell: Sends it "hold" or "release".
            by_signal: Stop it by signals; else it is told.
        """
        self._pid, self._tell, self._by_signal = pid, tell, by_signal
        self._lock = threading.Lock()
        self._is_held = self._is_stopped = False
        self._n_calls = 0
        self._since = self._held_s = 0.0

    def set(self, is_held: bool) -> None:
        """Hold it, or let it go on; the same again does nothing."""
        with self._lock:
            if is_held is self._is_held:
                return
            now = time.monotonic()
            if self._is_held:
                self._held_s += now - self._since
            self._is_held, self._since = is_held, now
            if not self._by_signal:
                self._tell("hold" if is_held else "release")
            self._apply()

    @contextmanager
    def awake(self) -> Iterator[None]:
        """For as long as a call waits for its answer, the process runs: what is held is the work in the background."""
        self._count(+1)
        try:
            yield
        finally:
            self._count(-1)

    def now(self) -> float:
        """Seconds in which the process could run: what it does not do while it is held is no sign that it hangs."""
        with self._lock:
            now = time.monotonic()
            return now - self._held_s - (now - self._since if self._is_held else 0.0)

    def _count(self, step: int) -> None:
        with self._lock:
            self._n_calls += step
            self._apply()

    def _apply(self) -> None:
        is_stopped = self._by_signal and self._is_held and not self._n_calls
        if is_stopped is self._is_stopped:
            return
        self._is_stopped = is_stopped
        if (pid := self._pid()) > 0:  # 0 would be this process's own group
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGSTOP if is_stopped else signal.SIGCONT)
