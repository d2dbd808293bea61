"""Work that goes on while other work does: the checkpoint's own answers during lowering, one recipe beside another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

Result = TypeVar("Result")
STOP_SECONDS = 10.0


class Ahead(Generic[Result]):
    """A function running in a thread of its own from now on. The thread is a daemon: no exit waits for it."""

    def __init__(self, make: Callable[[], Result]) -> None:
        self._make = make
        self._answer: list[Result] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._make())
        except BaseException as error:  # it is raised where the answer is asked for
            self._error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> Result:
        """Wait, in pieces that let an interrupt through, and return what the function did or raise what it raised."""
        while self.is_running:
            self._thread.join(timeout=0.5)
        if self._error is not None:
            raise self._error
        return self._answer[0]


def side_by_side(calls: Sequence[Callable[[], Result]], *, n_at_once: int, stop: Callable[[], None]) -> list[Result]:
    """Results of the calls, in their order, at most `n_at_once` running; with 1, in this thread and in order.

    Args:
        calls: What to do.
        n_at_once: How many may run at the same time.
        stop: Called again and again after an error or interrupt, until every running call has ended (10 s at most).

    Raises:
        The first error of a call; calls that had not begun by then are left out.
    """
    if n_at_once <= 1:
        return [call() for call in calls]
    places, given_up = threading.Semaphore(n_at_once), threading.Event()

    def in_turn(call: Callable[[], Result]) -> Result:
        with places:
            if given_up.is_set():
                raise InterruptedError("left out, because another call was interrupted")
            return call()

    running = [Ahead(partial(in_turn, call)) for call in calls]
    try:
        return [each.result() for each in running]
    except BaseException:
        given_up.set()
        wait_until_stopped(running, stop)
        raise


def wait_until_stopped(running: Sequence[Ahead[Result]], stop: Callable[[], None]) -> None:
    """Call `stop` until nothing runs any more, for 10 s at most."""
    deadline = time.monotonic() + STOP_SECONDS
    while any(each.is_running for each in running) and time.monotonic() < deadline:
        stop()
        time.sleep(0.05)
