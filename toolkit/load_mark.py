"""Notes on disk of how loading a plan went, so that what ended an app is not loaded again at its next start.

`<cache>/loads/KEY.json`, one file a plan: {"state": "loading" | "loaded" | "failed", "cause", "free_bytes"}. In the process of the app
itself a load cannot be survived, so "loading" is written before it, under a lock that ends with the process: a note that says
"loading" and that nobody holds was left by an app that died while it loaded. Of what it died nobody knows: a user may have killed
it. So a note counts for a day; a plan that is really bad costs one more death a day, and none is refused for ever.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from toolkit.cache import cache_root
from toolkit.installed import installed_version

_LOG = logging.getLogger(__name__)
_MAX_BYTES = 4096
ENOUGH_MORE = 1.25  # a plan that failed for memory is tried again once a quarter more is free
DIED = "died"
_COUNTS_FOR_S = 24 * 3600
_BAD = ("loading", "failed")


@dataclass(frozen=True)
class PastFailure:
    """How a plan failed before.

    Args:
        cause: A `CrashCause`, or "died": the app ended while it loaded.
        free_bytes: Memory that was free then; None where nothing told.
    """

    cause: str
    free_bytes: int | None

    def still_counts(self, free_bytes: int | None) -> bool:
        """Whether the plan would meet the same fate now: not with a quarter more memory free, if memory it was."""
        was_memory = self.cause in (DIED, "memory")
        return not (was_memory and free_bytes is not None and self.free_bytes is not None and free_bytes > ENOUGH_MORE * self.free_bytes)


class LoadMark:
    """The note of one plan. Where the cache cannot be written or locked it does nothing."""

    def __init__(self, *identity: object) -> None:
        """`identity` is what decides a plan's fate: content hash, backend, `versions`, context length, threads."""
        key = hashlib.sha256("\0".join(map(str, identity)).encode()).hexdigest()[:32]
        self._path = cache_root() / "loads" / f"{key}.json"
        self._held: IO[bytes] | None = None

    def past_failure(self) -> PastFailure | None:
        """How this plan failed last; None if it never did, succeeded since, is being loaded by a living process now, or that was
        more than a day ago."""
        try:
            with self._path.open("r+b") as stream:
                if not _try_lock(stream):
                    return None
                if abs(time.time() - os.fstat(stream.fileno()).st_mtime) > _COUNTS_FOR_S:
                    return None
                note = json.loads(stream.read(_MAX_BYTES) or b"{}")
                state, free = note.get("state"), note.get("free_bytes")
        except (OSError, ValueError, AttributeError, RecursionError):
            return None
        if state not in _BAD:
            return None
        cause = str(note.get("cause", DIED))[:40] if state == "failed" else DIED
        return PastFailure(cause, free if isinstance(free, int) else None)

    def begin(self, free_bytes: int | None) -> None:
        """This process starts to load the plan, and may not survive it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            stream = self._path.open("a+b")
        except OSError as error:
            _LOG.debug("no note of this load: %s", error)
            return
        if not _try_lock(stream):
            stream.close()
            return
        self._held = stream
        _begun.add(self)
        self._write({"state": "loading", "free_bytes": free_bytes})

    def succeed(self) -> None:
        """It was loaded and has answered."""
        self._end({"state": "loaded"})

    def fail(self, cause: str, free_bytes: int | None) -> None:
        """Loading it, or its first answer, ended the process that did it."""
        self._end({"state": "failed", "cause": cause, "free_bytes": free_bytes})

    def abandon(self) -> None:
        """The load was given up for another reason: nothing is known of the plan."""
        if self._held is not None:
            self._end({})

    def _end(self, note: dict[str, Any]) -> None:
        if self._held is None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._held = self._path.open("a+b")
            except OSError as error:
                _LOG.debug("no note of this load: %s", error)
                return
        self._write(note)
        self._held.close()
        self._held = None
        _begun.discard(self)

    def _write(self, note: dict[str, Any]) -> None:
        assert self._held is not None
        try:
            self._held.seek(0)
            self._held.truncate()
            self._held.write(json.dumps(note).encode())
            self._held.flush()
            if note.get("state") in _BAD:
                os.fsync(self._held.fileno())  # the system may go down with what comes next; good news may wait, an event loop may not
        except OSError as error:
            _LOG.debug("no note of this load: %s", error)


def versions(backend: str) -> str:
    """Of this package and of the engine's library: another version of either may load what this one could not."""
    from toolkit.diagnosis import ENGINES

    names = ["ondevice-toolkit", *([ENGINES[backend].distribution] if backend in ENGINES else [])]  # one made by hand has none
    return ", ".join(f"{name} {installed_version(name)}" for name in names)


_begun: weakref.WeakSet[LoadMark] = weakref.WeakSet()


def abandon_all() -> None:
    """For a process that ends on purpose while it loads (Ctrl-C): that is no failure of the plan."""
    for mark in list(_begun):
        mark.abandon()


def forget_all() -> int:
    """Remove every note; returns how many there were."""
    notes = list(_notes())
    for path in notes:
        path.unlink(missing_ok=True)
    return len(notes)


def _notes() -> list[Path]:
    folder = cache_root() / "loads"
    return sorted(folder.glob("*.json")) if folder.is_dir() else []


def _try_lock(stream: IO[bytes]) -> bool:
    """Take the file's lock if nobody has it; it ends with the file or the process."""
    try:
        import fcntl
    except ImportError:
        return False  # no lock that ends with its process: a note could never be told from a living load's
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
