"""Finds stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes text on as it comes, except an end that may be the beginning of a stop string.

    Stop strings and all that follows are never passed on. Of several, the one that begins first wins.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.has_stopped = False

    def feed(self, text: str) -> str:
        """Take the next piece; returns what may be shown now. Sets `has_stopped` when a stop string is complete."""
        if not self._stops:
            return text
        self._held += text
        found = [index for index in map(self._held.find, self._stops) if index >= 0]
        # A stop string that began earlier may still be incomplete: then the complete one has to wait for it.
        keep = self._n_undecided()
        if found and min(found) <= len(self._held) - keep:
            self.has_stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """What is still held when the text is over: it was no stop string after all, or holds a complete one."""
        found = [index for index in map(self._held.find, self._stops) if index >= 0]
        self.has_stopped = bool(found)
        shown, self._held = self._held[: min(found)] if found else self._held, ""
        return shown

    def _n_undecided(self) -> int:
        """Length of the longest end of what is held that some stop string begins with, itself not complete."""
        longest = max(map(len, self._stops))
        for size in range(min(longest - 1, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(len(stop) > size and stop.startswith(tail) for stop in self._stops):
                return size
        return 0
