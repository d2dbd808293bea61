from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import report_quality
from benchmarks.report_quality import (
    FIGURES,
    SETS,
    Score,
    is_grounded,
    is_supported,
    judge_note,
    judge_set,
    load_notes,
    main,
    missed_targets,
)
from mobile_app.report.evidence import Tag
from mobile_app.report.words import load_words


def test_the_sets_hold_forty_notes_in_two_languages_and_share_none() -> None:
    notes = {name: load_notes(name) for name in SETS}
    assert sum(len(found) for found in notes.values()) >= 40
    for found in notes.values():
        assert {note.transcript.language for note in found} == {"en", "ja"}
        assert len({note.name for note in found}) == len(found) >= 8
    sentences = [said for found in notes.values() for note in found for said in note.sentences]
    assert len(set(sentences)) == len(sentences)


@pytest.mark.parametrize("name", SETS)
def test_what_is_known_of_a_note_is_sound(name: str) -> None:
    for note in load_notes(name):
        tags = [tag for tag, _ in note.facts["said"]]
        assert set(tags) <= set(Tag)
        assert all(0 <= index < len(tags) for index in note.facts["denied"])
        for figure in ("owners", "due"):
            for index, wanted in note.facts.get(figure, {}).items():
                assert tags[int(index)] == "action", (note.name, wanted)


def test_nothing_in_a_report_of_the_judged_notes_is_without_evidence() -> None:
    score = judge_set("judge", None, None)
    assert all(score.of[figure] > 0 for figure in FIGURES)
    assert score.share("grounded") == 100.0
    assert score.share("unsupported") == 0.0


def test_a_tagger_that_finds_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Must-fail twin: with no cue left, tags and findings fall."""
    words = load_words("en")
    blind = replace(words, tags={}, statements=())
    monkeypatch.setattr("mobile_app.report.build.load_words", lambda language: blind)
    score = Score.empty()
    for note in load_notes("develop"):
        if note.transcript.language == "en":
            judge_note(note, score)
    assert score.share("findings") < 10 and score.share("tags") < 50


def test_numbers_that_are_not_read_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Must-fail twin: without the numbers in words and kanji the recall falls."""
    monkeypatch.setattr("mobile_app.report.quantities.english_numbers", lambda folded: [])
    monkeypatch.setattr("mobile_app.report.quantities.kanji_numbers", lambda folded: [])
    assert "numbers" in missed_targets(judge_set("develop", None, None))


@pytest.mark.parametrize("change", [{"text": "something else"}, {"evidence": {"start": 0, "end": 4, "start_s": 0.0, "end_s": 5.0}}])
def test_a_field_without_evidence_is_seen(change: dict[str, Any]) -> None:
    transcript = load_notes("develop")[0].transcript
    first = transcript.segments[1]
    quoted = {"text": transcript.text[first.start : first.end], "evidence": vars(first)}
    assert is_grounded(quoted, transcript)
    assert not is_grounded(quoted | change, transcript)


def test_a_sentence_nobody_said_is_seen() -> None:
    note = load_notes("develop")[0]
    assert is_supported({"text": "No visible leaks on pump three."}, note)
    assert not is_supported({"text": "Many visible leaks on pump three."}, note)


def test_the_command_prints_every_figure_of_both_sets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == list(SETS) and all(set(figures) == set(FIGURES) for figures in printed.values())


def test_a_missed_target_fails_the_check_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(report_quality.TARGETS, "tags", 100.1)
    assert main([]) == 0
    assert main(["--check"]) == 1
    said = capsys.readouterr().err
    assert "missed: tags of judge" in said and "missed: tags of fresh" in said
