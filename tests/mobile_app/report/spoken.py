"""Transcripts for tests: one segment a sentence, five seconds each."""

from __future__ import annotations

from datetime import date

from mobile_app.report.build import build_report
from mobile_app.report.document import Note, Source
from mobile_app.report.evidence import Fact, Report
from mobile_app.report.facts import find_facts
from mobile_app.report.sentences import split_sentences
from mobile_app.report.template import load_template
from mobile_app.report.units import load_units
from mobile_app.report.words import load_words
from mobile_app.transcript import NoteTranscript, join_segments

MONDAY = date(2026, 11, 30)
PUMP = (
    "Okay, I'm at pump room 3.",
    "Discharge pressure is two point five bar, sorry, two point seven bar.",
    "No visible leaks on pump three.",
    "The flange has a, um, three millimeter crack <b>.",
    "Ask Dave Miller to replace the gasket by Friday.",
    "Do we have a spare?",
    "The weather is nice.",
)


def transcript(*sentences: str, language: str | None = None) -> NoteTranscript:
    parts = [(said, 5.0 * index, 5.0 * index + 5.0) for index, said in enumerate(sentences)]
    return join_segments([*parts], language=language, duration_s=5.0 * len(parts))


def facts_of(*sentences: str, language: str | None = None) -> tuple[Fact, ...]:
    spoken = transcript(*sentences, language=language)
    return find_facts(spoken.text, split_sentences(spoken), load_words(spoken.language), load_units(), MONDAY)


def report_of(*sentences: str, language: str | None = None, template: str = "inspection") -> Report:
    return build_report(transcript(*sentences, language=language), load_template(template), recorded_on=MONDAY)


def note_of(*sentences: str, language: str | None = None, template: str = "inspection") -> Note:
    spoken = transcript(*sentences, language=language)
    made = build_report(spoken, load_template(template), recorded_on=MONDAY)
    return Note(made, spoken, load_template(template), Source("note.wav", "00"), MONDAY)
