"""The sessions of one engine that somebody still holds."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from toolkit.answer import FinishReason

if TYPE_CHECKING:
    from toolkit.session import Session


class Sessions:
    """All methods may be called from any thread, and another thread may add one meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of its own, because the engine's is held for as long as a load takes
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()

    def add(self, session: Session) -> None:
        """One was made."""
        with self._lock:
            self._sessions.add(session)

    def living(self) -> list[Session]:
        """Those that somebody still holds."""
        with self._lock:
            return list(self._sessions)

    @property
    def is_answering(self) -> bool:
        """Whether one of them is."""
        return any(session.is_answering for session in self.living())

    def interrupt(self, reason: FinishReason) -> None:
        """End what they are answering."""
        for session in self.living():
            session.interrupt(reason)

    def drop_caches(self) -> None:
        """Free their KV caches; each is built again when it is needed."""
        for session in self.living():
            session.drop_cache()

    def close(self) -> None:
        """Close them."""
        for session in self.living():
            session.close()
