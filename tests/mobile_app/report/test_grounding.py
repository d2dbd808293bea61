from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mobile_app.report.evidence import Quote, Report, Span
from mobile_app.report.grounding import Grounding
from mobile_app.report.words import load_words
from tests.mobile_app.report.spoken import PUMP, report_of, transcript


def grounding() -> Grounding:
    return Grounding(transcript(*PUMP), load_words("en"))


def test_a_report_made_of_the_transcript_loses_nothing() -> None:
    report = report_of(*PUMP)
    assert grounding().report(report) == report


def changed_word(report: Report) -> Report:
    finding = report.findings[0]
    return replace(report, findings=(replace(finding, quote=replace(finding.quote, text="Many visible leaks on pump three.")),))


def other_place(report: Report) -> Report:
    quote = report.questions[0]
    return replace(report, questions=(replace(quote, span=Span(0, 10)),))


def beyond_the_end(report: Report) -> Report:
    return replace(report, summary=(Quote("more", Span(10**6, 10**6 + 4)),))


def empty_evidence(report: Report) -> Report:
    return replace(report, title=Quote("pump room 3", Span(5, 5)))


def other_times(report: Report) -> Report:
    quote = report.not_placed[0]
    return replace(report, not_placed=(replace(quote, start_s=0.0),))


def other_number(report: Report) -> Report:
    one = report.measurements[0]
    return replace(report, measurements=(replace(one, fact=replace(one.fact, text="nine bar")),))


def number_of_another_sentence(report: Report) -> Report:
    first, second = report.measurements
    return replace(report, measurements=(replace(first, fact=second.fact),))


def invented_owner(report: Report) -> Report:
    action = report.actions[0]
    assert action.owner is not None
    return replace(report, actions=(replace(action, owner=replace(action.owner, text="Dave Mill")),))


@pytest.mark.parametrize(
    "change",
    [changed_word, other_place, beyond_the_end, empty_evidence, other_times, other_number, number_of_another_sentence, invented_owner],
)
def test_a_field_that_was_not_said_there_is_dropped_and_counted(change: Callable[[Report], Report]) -> None:
    kept = grounding().report(change(report_of(*PUMP)))
    assert kept.n_dropped == 1


def test_an_action_outlives_an_owner_nobody_named() -> None:
    kept = grounding().report(invented_owner(report_of(*PUMP)))
    assert [(action.owner, action.due is not None) for action in kept.actions] == [(None, True)]


def test_only_fillers_and_spaces_may_be_missing() -> None:
    words = load_words("en")
    assert words.speak("Um, the  pump, uh, leaks.") == "the pump, leaks."
    assert words.speak("The pump never leaks.") == "The pump never leaks."
