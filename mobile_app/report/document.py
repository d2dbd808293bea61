"""A report as the object of `report.json`: docs/formats/report.md describes it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from mobile_app.report.evidence import Action, Fact, Measurement, Quote, Report, TaggedSentence, When
from mobile_app.report.template import Template
from mobile_app.transcript import NoteTranscript

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Source:
    """What a report was made from.

    Args:
        name: File name of the recording or transcript, without its folder and as far as it can be shown.
        sha256: Of that file.
        speech_model: Name of the bundle that wrote the transcript; None if a transcript was given.
        is_truncated: The recording holds less sound than its header promises.
    """

    name: str
    sha256: str
    speech_model: str | None = None
    is_truncated: bool = False


@dataclass(frozen=True)
class Note:
    """A report with all that a writer needs."""

    report: Report
    transcript: NoteTranscript
    template: Template
    source: Source
    recorded_on: date | None = None

    @property
    def language(self) -> str:
        return self.transcript.language


def as_json(note: Note) -> dict[str, Any]:
    """The object of `report.json`. Spans count characters of the `text` in `transcript.json`."""
    report = note.report
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "voice-note-report",
        "template": note.template.name,
        "language": note.language,
        "recorded_on": note.recorded_on.isoformat() if note.recorded_on else None,
        "source": {**vars(note.source), "duration_s": note.transcript.duration_s},
        "tagger": report.tagger,
        "n_sentences": len(report.tagged),
        "n_dropped": report.n_dropped,
        "title": _quote(report.title),
        "site": _quote(report.site),
        "time": _when(report.time),
        "summary": [_quote(quote) for quote in report.summary],
        "findings": [
            {**_said(finding.quote), "severity": finding.severity.value, "is_negated": finding.is_negated} for finding in report.findings
        ],
        "measurements": [_measurement(one) for one in report.measurements],
        "actions": [_action(action) for action in report.actions],
        "questions": [_quote(quote) for quote in report.questions],
        "not_placed": [_quote(quote) for quote in report.not_placed],
        "sentences": [_sentence(one) for one in report.tagged],
    }


def _said(quote: Quote) -> dict[str, Any]:
    span = quote.span
    return {"text": quote.text, "evidence": {"start": span.start, "end": span.end, "start_s": quote.start_s, "end_s": quote.end_s}}


def _quote(quote: Quote | None) -> dict[str, Any] | None:
    return _said(quote) if quote else None


def _when(when: When | None) -> dict[str, Any] | None:
    return {**_said(when.quote), "normal": when.normal or None} if when else None


def _measurement(one: Measurement) -> dict[str, Any]:
    return {**_said(one.quote), "what": _quote(one.what), "amount": _fact(one.fact)}


def _action(action: Action) -> dict[str, Any]:
    return {**_said(action.quote), "owner": _quote(action.owner), "due": _when(action.due)}


def _sentence(one: TaggedSentence) -> dict[str, Any]:
    span = one.sentence.span
    return {
        "start": span.start,
        "end": span.end,
        "text": one.sentence.text,
        "tag": one.tag.value,
        "severity": one.severity.value,
        "facts": [_fact(fact) for fact in one.facts],
    }


def _fact(fact: Fact) -> dict[str, Any]:
    return {
        "kind": fact.kind.value,
        "text": fact.text,
        "start": fact.span.start,
        "end": fact.span.end,
        "value": _number(fact.value),
        "second_value": _number(fact.second_value),
        "relation": fact.relation or None,
        "unit": fact.unit or None,
        "qualifier": fact.qualifier or None,
        "normal": fact.normal or None,
        "is_retracted": fact.is_retracted,
    }


def _number(value: Decimal | None) -> int | float | None:
    if value is None:
        return None
    return int(value) if value == value.to_integral_value() else float(value)
