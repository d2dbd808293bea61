"""Ctrl-C that is felt at once, whatever native code is doing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

GRACE_S = 0.1
PRINTING_S = 5.0


class Interruptible:
    """Runs work on a second thread while this one waits for it or for Ctrl-C.

    A native call holds off Python's signal handlers until it returns, so the thread that receives Ctrl-C must not be in one.
    The work prints by itself: nothing passes between the threads while it runs.
    """

    def __init__(self) -> None:
        self._cancel: Callable[[], None] = lambda: None
        self._code = 0
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._reported = threading.Event()
        self._result = threading.Lock()

    def on_interrupt(self, cancel: Callable[[], None]) -> None:
        """What Ctrl-C does from now on: make the work end soon. Called by the work, from its thread."""
        self._cancel = cancel

    def may_print(self) -> bool:
        """Whether the result may be printed: not if it was given up meanwhile. Called by the work, from its thread."""
        return self._result.acquire(blocking=False)

    def give_up(self) -> bool:
        """After Ctrl-C: whether the work has not begun to print its result, and now never will. If it has, waits for its end."""
        if self._result.acquire(blocking=False):
            return True
        self._reported.wait(PRINTING_S)
        return False

    def report_done(self) -> None:
        """Everything worth waiting for is printed: after Ctrl-C the process may end. Called by the work, from its thread."""
        self._reported.set()

    def run(self, work: Callable[[], int]) -> int:
        """Run `work` to its end; returns its exit code, or raises what it raised.

        Raises:
            KeyboardInterrupt: Ctrl-C came. The work was cancelled and had a moment to print what it had.
        """
        try:
            _forgive_loads_when_ended()
            threading.Thread(target=self._work, args=[work], daemon=True).start()
            self._done.wait()
        except KeyboardInterrupt:
            self._cancel()
            self._reported.wait(GRACE_S)
            raise
        if self._error is not None:
            raise self._error
        return self._code

    def _work(self, work: Callable[[], int]) -> None:
        if hasattr(signal, "pthread_sigmask"):  # native threads started from here inherit it: Ctrl-C goes to the waiting thread
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._code = work()
        except BaseException as error:
            self._error = error
        finally:
            self._reported.set()
            self._done.set()


def _forgive_loads_when_ended() -> None:
    """A load that SIGTERM or a closed terminal ends is no failure of the plan: note that, then die of the signal as before."""

    def end(number: int, frame: object) -> None:
        _abandon_loads()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if threading.current_thread() is not threading.main_thread():
        return
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)


def _abandon_loads() -> None:
    if (marks := sys.modules.get("toolkit.load_mark")) is not None:
        marks.abandon_all()  # a load that is left on purpose is no failure


def leave(code: int) -> NoReturn:
    """End the process now: an interpreter that shuts down in order would wait for native code, or die in it."""
    _abandon_loads()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass
    os._exit(code)
