"""The last word on every field: what the transcript does not say is dropped, and counted."""

from __future__ import annotations

from dataclasses import replace

from mobile_app.report.evidence import Action, Fact, Finding, Measurement, Quote, Report, Span, When
from mobile_app.report.words import Words
from mobile_app.transcript import NoteTranscript


class Grounding:
    """Checks fields against a transcript. `n_dropped` counts those it refused.

    It reads nothing but the transcript, so it judges rules, models and whatever comes later alike.
    """

    def __init__(self, transcript: NoteTranscript, words: Words) -> None:
        self._transcript, self._words = transcript, words
        self.n_dropped = 0

    def quote(self, span: Span) -> Quote:
        """The words of a span, with the times of their sound."""
        said = self._words.speak(self._transcript.text[span.start : span.end])
        return Quote(said, span, *self._transcript.times(span.start, span.end))

    def holds(self, quote: Quote) -> bool:
        """Whether a quote is what the transcript says there, fillers apart, with the times of that place."""
        span, text = quote.span, self._transcript.text
        if not (0 <= span.start < span.end <= len(text)) or not quote.text:
            return False
        return quote == self.quote(span)

    def holds_fact(self, fact: Fact) -> bool:
        """Whether a fact's words stand where it says."""
        return bool(fact.text) and self._transcript.text[fact.span.start : fact.span.end] == fact.text

    def report(self, report: Report) -> Report:
        """The report without what has no evidence."""
        return replace(
            report,
            title=self._kept(report.title),
            site=self._kept(report.site),
            time=self._when(report.time),
            summary=self._all(report.summary),
            questions=self._all(report.questions),
            not_placed=self._all(report.not_placed),
            findings=tuple(finding for finding in report.findings if self._finding(finding)),
            measurements=tuple(read for one in report.measurements if (read := self._measurement(one))),
            actions=tuple(made for action in report.actions if (made := self._action(action))),
            n_dropped=report.n_dropped + self.n_dropped,
        )

    def _kept(self, quote: Quote | None) -> Quote | None:
        if quote is None or self.holds(quote):
            return quote
        self.n_dropped += 1
        return None

    def _all(self, quotes: tuple[Quote, ...]) -> tuple[Quote, ...]:
        return tuple(quote for quote in quotes if self._kept(quote))

    def _when(self, when: When | None) -> When | None:
        return when if when is None or self._kept(when.quote) else None

    def _finding(self, finding: Finding) -> bool:
        return self._kept(finding.quote) is not None

    def _measurement(self, measurement: Measurement) -> Measurement | None:
        is_said = self.holds(measurement.quote) and self.holds_fact(measurement.fact)
        if not is_said or not measurement.quote.span.holds(measurement.fact.span):
            self.n_dropped += 1
            return None
        return replace(measurement, what=self._kept(measurement.what))

    def _action(self, action: Action) -> Action | None:
        if self._kept(action.quote) is None:
            return None
        return replace(action, owner=self._kept(action.owner), due=self._when(action.due))
