"""Stretches of text that are taken: asked for by the thousand in a long note, so looked up by halving."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from mobile_app.report.evidence import Span


class SpanSet:
    """Spans of which no two meet."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for span in spans:
            self.add(span)

    def meets(self, span: Span) -> bool:
        """Whether a stretch of `span` is taken."""
        at = bisect_right(self._starts, span.start)
        return (at > 0 and self._ends[at - 1] > span.start) or (at < len(self._starts) and self._starts[at] < span.end)

    def add(self, span: Span) -> bool:
        """Take a stretch; False, and nothing is done, if it is taken already."""
        if self.meets(span):
            return False
        at = bisect_right(self._starts, span.start)
        self._starts.insert(at, span.start)
        self._ends.insert(at, span.end)
        return True

    def holder(self, span: Span) -> int | None:
        """The index, by place in the text, of the taken stretch that `span` lies inside of."""
        at = bisect_right(self._starts, span.start) - 1
        return at if at >= 0 and self._ends[at] >= span.end else None
