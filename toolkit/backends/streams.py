"""What the engines' own sessions share: room for a prompt, and the threads their streams run on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from toolkit.errors import EngineError


def check_room(n_added: int, *, n_held: int, context_length: int) -> None:
    """Refuse a prompt that leaves no token for the answer.

    Args:
        n_added: Its tokens, and those the engine puts before the first text.
        n_held: Tokens in the cache.
        context_length: Tokens the cache may hold.

    Raises:
        EngineError: It is too long, or has no token.
    """
    if not n_added:
        raise EngineError("the prompt is empty", why="it has no tokens", fix="give at least one word")
    if n_held + n_added >= context_length:
        why = f"the context holds {context_length} tokens, {n_held} are taken, the text has {n_added}, and one is for the answer"
        raise EngineError("the prompt does not fit", why=why, fix="shorten it, or use a larger --context")


class StreamThreads:
    """Threads of one engine's streams, which its end waits for."""

    def __init__(self, engine: str) -> None:
        """`engine` is its name, for the threads'."""
        self._name = f"{engine}-stream"
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], None]) -> None:
        """Do it on a thread of its own."""
        thread = threading.Thread(target=work, name=self._name, daemon=True)
        self._threads = [other for other in self._threads if other.is_alive()] + [thread]
        thread.start()

    def join(self) -> None:
        """Wait for all of them; a thread does not wait for itself."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
