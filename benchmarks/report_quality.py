"""What the report pipeline finds of what was said, on notes written by hand with known facts.

    python -m benchmarks.report_quality [--show] [--check] [--json] [--speech FOLDER --bundle BUNDLE]

Three sets: `develop` the rules were made on; `judge` they were not, but its totals were watched; `fresh` was written last and run
once. Each figure is (found, of): numbers with their unit, dates and times, denied sentences, findings, findings that are one
(precise), owners and due dates; sentences tagged right; fields whose words stand in the transcript (grounded) and sentences of a
report that are no sentence of it (unsupported). What rewording counts is in docs/formats/report.md.
`--speech` takes recordings of the notes (benchmarks.spoken_notes) through the speech model first, English only.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from mobile_app.report.build import build_report
from mobile_app.report.document import Note, Source, as_json
from mobile_app.report.evidence import Fact, FactKind, Report, TaggedSentence
from mobile_app.report.template import load_template
from mobile_app.report.words import load_words
from mobile_app.transcript import NoteTranscript, join_segments

FOLDER = Path(__file__).with_name("voice_notes")
SETS = ("develop", "judge", "fresh")
JUDGED = ("judge", "fresh")
SECONDS_PER_SENTENCE = 5.0
# figure -> least share, in percent, that --check lets pass on the notes the rules were not made on
TARGETS = {"numbers": 98.0, "dates": 98.0, "denied": 98.0, "findings": 80.0, "grounded": 100.0}
MOST_UNSUPPORTED = 1.5
FIGURES = ("numbers", "dates", "denied", "findings", "precise", "owners", "due", "tags", "grounded", "unsupported")


@dataclass(frozen=True)
class KnownNote:
    """A note and what is known of it."""

    facts: dict[str, Any]
    transcript: NoteTranscript
    sentences: tuple[str, ...]
    recorded_on: date

    @property
    def name(self) -> str:
        return str(self.facts["name"])


def load_notes(name: str) -> list[KnownNote]:
    """The notes of a set."""
    table = tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))
    return [_note(facts, table["recorded_on"]) for facts in table["notes"]]


def _note(facts: dict[str, Any], recorded_on: date) -> KnownNote:
    parts = [(said, index * SECONDS_PER_SENTENCE, (index + 1) * SECONDS_PER_SENTENCE) for index, (_, said) in enumerate(facts["said"])]
    transcript = join_segments([*parts], language=facts["language"], duration_s=len(parts) * SECONDS_PER_SENTENCE)
    return KnownNote(facts, transcript, tuple(said for _, said in facts["said"]), recorded_on)


def heard(note: KnownNote, recording: Path, bundle: Path) -> KnownNote:
    """The note as the speech model understands its recording."""
    from mobile_app.recording import open_recording
    from mobile_app.transcriber import transcribe_recording

    language = note.transcript.language
    found = transcribe_recording(open_recording(recording, "en"), bundle, name=recording.name, language=language, user="en")
    return replace(note, transcript=found)


def matching(note: KnownNote, report: Report) -> list[TaggedSentence]:
    """For each sentence that was said the one of the transcript that shares most words with it."""
    bags = [(one, Counter(_words(one.sentence.text))) for one in report.tagged]
    return [max(bags, key=lambda pair: _shared(Counter(_words(said)), pair[1]))[0] for said in note.sentences]


def _words(text: str) -> list[str]:
    """Words of English; characters of Japanese."""
    found: list[str] = re.findall(r"[a-z0-9']+|[^\x00-\x7f]", text.lower())
    return found


def _shared(wanted: Counter[str], got: Counter[str]) -> float:
    return 2 * (wanted & got).total() / (wanted.total() + got.total() or 1)


@dataclass
class Score:
    """Sums over notes: figure -> found, figure -> of; and what was missed, for people."""

    found: Counter[str]
    of: Counter[str]
    missed: list[str]

    @classmethod
    def empty(cls) -> Score:
        return cls(Counter(), Counter(), [])

    def add(self, figure: str, is_found: bool, what: str) -> None:
        self.of[figure] += 1
        self.found[figure] += is_found
        if not is_found and figure != "unsupported":
            self.missed.append(f"{figure}: {what}")

    def share(self, figure: str) -> float:
        """In percent; every figure is counted at least once, or this fails."""
        return 100 * self.found[figure] / self.of[figure]


def judge_note(note: KnownNote, score: Score) -> None:
    """Make the report of a note and count what it got right."""
    report = build_report(note.transcript, load_template(note.facts.get("template", "inspection")), recorded_on=note.recorded_on)
    facts = [fact for one in report.tagged for fact in one.facts if not fact.is_retracted]
    _count_values(note, facts, score)
    _count_sentences(note, report, score)
    _count_actions(note, report, score)
    document = as_json(Note(report, note.transcript, load_template("inspection"), Source(note.name, "")))
    for quoted in quotes(document):
        score.add("grounded", is_grounded(quoted, note.transcript), f"{note.name}: {quoted['text']}")
    shown = [*document["summary"], *document["findings"], *document["actions"], *document["questions"], *document["not_placed"]]
    for quoted in shown:
        score.add("unsupported", not is_supported(quoted, note), quoted["text"])


def _count_values(note: KnownNote, facts: Sequence[Fact], score: Score) -> None:
    said = Counter(number_text(fact) for fact in facts if fact.kind is FactKind.NUMBER)
    bare = Counter(text.partition(" ")[0] for text in said.elements())
    for wanted in note.facts["numbers"]:
        score.add("numbers", (said if " " in wanted else bare)[wanted] > 0, f"{note.name}: {wanted} not in {sorted(said)}")
    normals = [fact.normal for fact in facts if fact.kind in (FactKind.DATE, FactKind.TIME)]
    for wanted in note.facts["dates"]:
        score.add("dates", wanted in normals, f"{note.name}: {wanted} not in {normals}")


def number_text(fact: Fact) -> str:
    """A number as the notes spell it: `2.7 bar`, `120/80`, `14-16 mm`."""
    text = f"{fact.value:f}" if fact.value is not None else ""
    if fact.second_value is not None:
        text += ("-" if fact.relation == "to" else "/") + f"{fact.second_value:f}"
    return f"{text} {fact.unit}".strip()


def _count_sentences(note: KnownNote, report: Report, score: Score) -> None:
    found_spans = {finding.quote.span for finding in report.findings}
    for index, one in enumerate(matching(note, report)):
        tag, said = note.facts["said"][index]
        score.add("tags", one.tag.value == tag, f"{note.name}: {one.tag.value}, not {tag}: {said}")
        if one.sentence.span in found_spans:
            score.add("precise", tag == "finding", f"{note.name}: not a finding: {said}")
        if tag == "finding":
            score.add("findings", one.sentence.span in found_spans, f"{note.name}: {said}")
        if index in note.facts["denied"]:
            score.add("denied", any(fact.kind is FactKind.NEGATION for fact in one.facts), f"{note.name}: {said}")


def _count_actions(note: KnownNote, report: Report, score: Score) -> None:
    matched = matching(note, report)
    for figure in ("owners", "due"):
        for index, wanted in note.facts.get(figure, {}).items():
            actions = [action for action in report.actions if action.quote.span == matched[int(index)].sentence.span]
            owners = [action.owner.text if action.owner else "" for action in actions]
            got = owners if figure == "owners" else [action.due.normal if action.due else "" for action in actions]
            score.add(figure, wanted in got, f"{note.name}: {wanted} not in {got}")


def quotes(document: Any) -> Iterator[dict[str, Any]]:
    """Every quoted field of a report document."""
    if isinstance(document, dict):
        if "evidence" in document:
            yield document
        for value in document.values():
            yield from quotes(value)
    elif isinstance(document, list):
        for value in document:
            yield from quotes(value)


def is_grounded(quoted: dict[str, Any], transcript: NoteTranscript) -> bool:
    """Whether a field's words are the transcript's at that place, fillers apart, and its times those of that place."""
    evidence = quoted["evidence"]
    said = load_words(transcript.language).speak(transcript.text[evidence["start"] : evidence["end"]])
    times = transcript.times(evidence["start"], evidence["end"])
    return bool(said) and said == quoted["text"] and times == (evidence["start_s"], evidence["end_s"])


def is_supported(quoted: dict[str, Any], note: KnownNote) -> bool:
    """Whether a sentence of the report is part of what the transcript says, fillers apart."""
    words = load_words(note.transcript.language)
    return quoted["text"] in words.speak(note.transcript.text) or any(quoted["text"] in words.speak(said) for said in note.sentences)


def print_table(scores: dict[str, Score], write: Callable[[str], object] = print) -> None:
    """One line a figure, one column a set."""
    names = list(scores)
    write("figure".ljust(14) + "".join(name.rjust(22) for name in names))
    for figure in FIGURES:
        cells = [f"{score.found[figure]}/{score.of[figure]} = {score.share(figure):.1f} %" for score in scores.values()]
        write(figure.ljust(14) + "".join(cell.rjust(22) for cell in cells))


def judge_set(name: str, speech: Path | None, bundle: Path | None) -> Score:
    """The score of a set; from speech only of the notes that have a recording."""
    score = Score.empty()
    for note in load_notes(name):
        if speech is None or bundle is None:
            judge_note(note, score)
        elif (recording := speech / name / f"{note.name}.wav").is_file():
            judge_note(heard(note, recording, bundle), score)
    return score


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; 1 if --check is given and one misses its target."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--show", action="store_true", help="print what was missed on the notes the rules were made on")
    parser.add_argument("--check", action="store_true", help="fail if a figure on the other notes misses its target")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--speech", metavar="FOLDER", type=Path, help="recordings SET/NAME.wav of the notes")
    parser.add_argument("--bundle", metavar="BUNDLE", type=Path, help="the speech model that hears them")
    options = parser.parse_args(argv)
    if (options.speech is None) != (options.bundle is None):
        parser.error("--speech and --bundle go together")
    scores = {name: judge_set(name, options.speech, options.bundle) for name in SETS}
    if options.json:
        print(json.dumps({name: {figure: [score.found[figure], score.of[figure]] for figure in FIGURES} for name, score in scores.items()}))
    else:
        print_table(scores)
    if options.show:
        print("\n".join(scores["develop"].missed))
    missed = [f"{figure} of {name}" for name in JUDGED for figure in missed_targets(scores[name])]
    for figure in missed:
        print(f"missed: {figure}", file=sys.stderr)
    return 1 if missed and options.check else 0


def missed_targets(score: Score) -> list[str]:
    """The figures that miss their target."""
    missed = [figure for figure, least in TARGETS.items() if score.share(figure) < least]
    return missed + (["unsupported"] if score.share("unsupported") > MOST_UNSUPPORTED else [])


if __name__ == "__main__":
    sys.exit(main())
