"""Seconds that pass when a test says so."""

from __future__ import annotations


class Clock:
    """Stands in for `time.monotonic`."""

    now = 100.0

    def __call__(self) -> float:
        return self.now
