"""A transcript to a report: sentences, facts, tags, fields, and at the end the check of every field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from mobile_app.report.evidence import (
    Action,
    Fact,
    FactKind,
    Finding,
    Measurement,
    Quote,
    Report,
    Sentence,
    Severity,
    Span,
    Tag,
    TaggedSentence,
    When,
)
from mobile_app.report.facts import find_facts
from mobile_app.report.folded import fold
from mobile_app.report.grounding import Grounding
from mobile_app.report.sentences import split_sentences
from mobile_app.report.span_set import SpanSet
from mobile_app.report.tagger import RulesTagger, Tagger, choose_tagger
from mobile_app.report.template import Template
from mobile_app.report.units import load_units
from mobile_app.report.words import Words, load_words
from mobile_app.transcript import NoteTranscript

# A note of so few sentences is its own summary.
UNSUMMED_SENTENCES, SUMMARY_SENTENCES = 3, 3
TITLE_CHARS = 80
_NO_SUBJECT = ("it", "and", "that", "and it", "this", "これ", "それ")
_WORST_FIRST = (Severity.CRITICAL, Severity.MAJOR, Severity.MINOR, Severity.UNSTATED, Severity.OK)


def build_report(transcript: NoteTranscript, template: Template, *, recorded_on: date | None = None, model: Tagger | None = None) -> Report:
    """The report of a transcript.

    Args:
        transcript: What was said. It is data: no word of it changes what is done with it.
        template: The job's words and units.
        recorded_on: The day of the note, by which `tomorrow` gets a date.
        model: Tags the sentences instead of the rules, unless the note is very short.
    """
    words = load_words(transcript.language).with_added(template.nouns, template.words)
    sentences = split_sentences(transcript)
    facts = find_facts(transcript.text, sentences, words, load_units(template.units), recorded_on)
    tagger = choose_tagger(sentences, RulesTagger(words), model)
    tagged = tagger.tag(sentences, _by_sentence(sentences, facts))
    grounding = Grounding(transcript, words)
    return grounding.report(_Fields(transcript, words, grounding, tagged).report(tagger.name))


def _by_sentence(sentences: Sequence[Sentence], facts: Sequence[Fact]) -> list[list[Fact]]:
    spans = SpanSet(sentence.span for sentence in sentences)
    found: list[list[Fact]] = [[] for _ in sentences]
    for fact in facts:
        if (index := spans.holder(fact.span)) is not None:
            found[index].append(fact)
    return found


class _Fields:
    """Makes the fields of one report out of tagged sentences."""

    def __init__(self, transcript: NoteTranscript, words: Words, grounding: Grounding, tagged: Sequence[TaggedSentence]) -> None:
        self._text, self._folded = transcript.text, fold(transcript.text)
        self._words, self._quote, self._tagged = words, grounding.quote, tuple(tagged)

    def report(self, tagger: str) -> Report:
        findings = tuple(self._finding(one) for one in self._of(Tag.FINDING))
        actions = tuple(self._action(one) for one in self._of(Tag.ACTION))
        questions = tuple(self._quote(one.sentence.span) for one in self._of(Tag.QUESTION))
        measurements = tuple(made for one in self._tagged for made in self._measurements(one))
        site, time = self._site(), self._time()
        shown = [finding.quote for finding in findings] + [action.quote for action in actions] + list(questions)
        placed = {quote.span for quote in [*shown, *(measurement.quote for measurement in measurements)]}
        also = [field.span for field in (site, time.quote if time else None) if field]
        left = [one.sentence.span for one in self._tagged if one.sentence.span not in placed]
        return Report(
            title=self._title(site),
            site=site,
            time=time,
            summary=self._summary(findings, actions),
            findings=findings,
            measurements=measurements,
            actions=actions,
            questions=questions,
            not_placed=tuple(self._quote(span) for span in left if not self._is_told(span, also)),
            tagged=self._tagged,
            tagger=tagger,
        )

    def _of(self, tag: Tag) -> list[TaggedSentence]:
        return [one for one in self._tagged if one.tag is tag and self._words.speak(one.sentence.text)]

    def _is_told(self, sentence: Span, fields: list[Span]) -> bool:
        """Whether site and time say all that a sentence says: what is left of it are small words."""
        inside = sorted((field for field in fields if sentence.holds(field)), key=lambda field: field.start)
        left, at = "", sentence.start
        for field in inside:
            left, at = f"{left}{self._folded[at : field.start]} ", max(at, field.end)
        left = self._words.small_words.sub(" ", self._words.speak(left + self._folded[at : sentence.end]))
        return bool(inside) and not any(char.isalnum() for char in left)

    def _finding(self, one: TaggedSentence) -> Finding:
        is_negated = any(fact.kind is FactKind.NEGATION for fact in one.facts)
        return Finding(self._quote(one.sentence.span), one.severity, is_negated)

    def _measurements(self, one: TaggedSentence) -> list[Measurement]:
        """Numbers with a physical unit, and pairs like 120 over 80. When an action is due is no measurement."""
        due = self._due(one) if one.tag is Tag.ACTION else None
        found = [fact for fact in one.facts if fact.kind is FactKind.NUMBER and (fact.is_measured or fact.relation == "over")]
        kept = [fact for fact in found if not fact.is_retracted and not (due and due.quote.span.meets(fact.span))]
        quote = self._quote(one.sentence.span)
        return [Measurement(quote, fact, self._what(one, fact)) for fact in kept] if quote.text else []

    def _what(self, one: TaggedSentence, fact: Fact) -> Quote | None:
        """What was measured: the words of the clause before the number, if a verb or a pause parts them."""
        retracted = [other for other in one.facts if other.is_retracted and other.kind is fact.kind and other.span.end <= fact.span.start]
        if retracted:  # `pressure is two bar, sorry, three bar`: the name stands before what was taken back
            return self._what(one, replace(retracted[0], is_retracted=False))
        start = one.sentence.span.start
        marks = ",;、。" if self._words.language == "ja" else ",;"
        start = max([start, *(self._folded.rfind(mark, start, fact.span.start) + 1 for mark in marks)])
        others = [other.span.end for other in one.facts if other.kind is FactKind.NUMBER and start < other.span.end <= fact.span.start]
        start = max([start, *others])
        before = self._folded[start : fact.span.start]
        qualifier = self._words.qualifiers.search(before.rstrip())
        before = before[: qualifier.start()] if qualifier else before
        ending = self._words.what_ends.search(before)
        if ending is None or not (said := before[: ending.start()].strip()):
            return None
        left = start + len(before) - len(before.lstrip())
        quote = self._quote(Span(left, left + len(said)))
        return quote if quote.text and len(quote.text) <= TITLE_CHARS and quote.text.lower() not in _NO_SUBJECT else None

    def _action(self, one: TaggedSentence) -> Action:
        return Action(self._quote(one.sentence.span), self._owner(one), self._due(one))

    def _owner(self, one: TaggedSentence) -> Quote | None:
        span = one.sentence.span
        said = self._folded[span.start : span.end]
        owners = [match.span("owner") for pattern in self._words.owners if (match := pattern.search(said))]
        names = [fact.span for fact in one.facts if fact.kind is FactKind.NAME]
        if names and self._words.language == "en":
            return self._quote(names[0])
        if owners:
            start, end = min(owners)
            return self._quote(Span(span.start + start, span.start + end))
        return None

    def _due(self, one: TaggedSentence) -> When | None:
        """The last date said with an action, or its time of day when there is no date."""
        for kind in (FactKind.DATE, FactKind.TIME):
            found = [fact for fact in one.facts if fact.kind is kind and not fact.is_retracted]
            if found:
                return When(self._quote(found[-1].span), found[-1].normal)
        return None

    def _site(self) -> Quote | None:
        ordered = self._of(Tag.PLACE) or [one for one in self._tagged[:2] if one.tag is not Tag.ACTION]
        for one in ordered:
            span = one.sentence.span
            said = self._folded[span.start : span.end]
            for pattern in self._words.sites:
                if match := pattern.search(said):
                    start, end = match.span("site")
                    stop = self._words.site_ends.search(said, start, end) if self._words.site_ends else None
                    return self._quote(Span(span.start + start, span.start + (stop.start() if stop else end)))
        return None

    def _time(self) -> When | None:
        """When the note was made: the first date or time of a sentence that asks for nothing to be done."""
        for kind in (FactKind.TIME, FactKind.DATE):
            for one in self._tagged:
                found = [fact for fact in one.facts if fact.kind is kind and not fact.is_retracted]
                if found and one.tag in (Tag.PLACE, Tag.OTHER):
                    return When(self._quote(found[0].span), found[0].normal)
        return None

    def _title(self, site: Quote | None) -> Quote | None:
        """The site, else the first sentence that says something, cut at a clause."""
        if site is not None:
            return site
        for one in self._tagged:
            quote = self._quote(one.sentence.span)
            if quote.text:
                span = one.sentence.span
                if span.end - span.start > TITLE_CHARS:
                    window = self._folded[span.start : span.start + TITLE_CHARS]
                    cut = max(window.rfind(mark) for mark in (",", "、", " "))
                    span = Span(span.start, span.start + (cut if cut > 0 else TITLE_CHARS))
                return self._quote(span) if self._quote(span).text else quote
        return None

    def _summary(self, findings: Sequence[Finding], actions: Sequence[Action]) -> tuple[Quote, ...]:
        """At most three sentences, in the note's order: two findings that are worst, what is to be done, what is well."""
        if len(self._tagged) <= UNSUMMED_SENTENCES:
            return ()
        worst = sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.severity))
        bad = [finding.quote for finding in worst if finding.severity is not Severity.OK]
        chosen = [*bad[:2], *(action.quote for action in actions), *bad[2:], *(finding.quote for finding in worst)]
        chosen = list(dict.fromkeys(chosen))[:SUMMARY_SENTENCES]
        return tuple(sorted(chosen, key=lambda quote: quote.span.start))
