"""What each sentence is for: a protocol, and the rules that need no model.

A second tagger, by scored choices of a model, fits the same protocol. It is not here: `toolkit.Engine` gives no scores of
continuations, and without them small models label half of the sentences wrong (docs/formats/report.md, "Taggers").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mobile_app.report.evidence import Fact, FactKind, Sentence, Severity, Tag, TaggedSentence
from mobile_app.report.folded import fold
from mobile_app.report.words import Words

# A note as short as this is judged by the rules alone, whatever tagger there is: nothing in it needs a second look.
SHORT_SENTENCES = 2
MEASURED, STRONG = 3, 4
# A note mostly opens with where the speaker is; less than this is no reason for any tag.
OPENING, LEAST = 2, 2
# Which tag wins among equals: what must not be overlooked comes first.
_PRECEDENCE = (Tag.QUESTION, Tag.ACTION, Tag.FINDING, Tag.PLACE, Tag.MEASUREMENT)
_SEVERITIES = (Severity.CRITICAL, Severity.MAJOR, Severity.MINOR)


class Tagger(Protocol):
    """Gives every sentence a tag and a severity."""

    @property
    def name(self) -> str:
        """What the report calls it: `rules`, or a model's bundle."""

    def tag(self, sentences: Sequence[Sentence], facts: Sequence[Sequence[Fact]]) -> tuple[TaggedSentence, ...]:
        """One answer a sentence, in order; `facts` are those inside of each."""


class RulesTagger:
    """Sums the weights of a language's cues, see `words_en.toml` and `words_ja.toml`."""

    name = "rules"

    def __init__(self, words: Words) -> None:
        self._words = words

    def tag(self, sentences: Sequence[Sentence], facts: Sequence[Sequence[Fact]]) -> tuple[TaggedSentence, ...]:
        """See `Tagger`."""
        return tuple(self._tagged(sentence, tuple(found)) for sentence, found in zip(sentences, facts, strict=True))

    def _tagged(self, sentence: Sentence, facts: tuple[Fact, ...]) -> TaggedSentence:
        said = self._words.speak(sentence.text)
        scores = self._scores(said, facts)
        if sentence.index == 0:
            scores[Tag.PLACE] += OPENING
        best = max(_PRECEDENCE, key=lambda tag: (scores[tag], -_PRECEDENCE.index(tag)))
        if scores[best] < LEAST and self._is_statement(sentence, facts, said):
            best, scores[Tag.FINDING] = Tag.FINDING, LEAST
        tag = best if scores[best] >= max(LEAST, scores[Tag.OTHER]) else Tag.OTHER
        severity = self._severity(sentence, facts) if tag is Tag.FINDING else Severity.UNSTATED
        return TaggedSentence(sentence, facts, tag, severity)

    def _is_statement(self, sentence: Sentence, facts: tuple[Fact, ...], said: str) -> bool:
        """Whether a sentence says more than when: `It's about nine a.m.` is nothing that was seen."""
        left = list(fold(sentence.text))
        for fact in facts:
            if fact.kind in (FactKind.DATE, FactKind.TIME):
                start, end = fact.span.start - sentence.span.start, fact.span.end - sentence.span.start
                left[start:end] = " " * (end - start)
        rest = self._words.small_words.sub(" ", self._words.speak("".join(left)))
        return any(char.isalnum() for char in rest) and any(cue.pattern.search(fold(said)) for cue in self._words.statements)

    def _scores(self, said: str, facts: tuple[Fact, ...]) -> dict[Tag, int]:
        folded = fold(said)
        scores = {tag: sum(cue.weight for cue in self._words.tags.get(tag, ()) if cue.pattern.search(folded)) for tag in Tag}
        if any(fact.is_measured and not fact.is_retracted for fact in facts):
            scores[Tag.MEASUREMENT] += MEASURED
        elif sum(fact.kind is FactKind.NUMBER for fact in facts) > 1:  # values read out one after the other, units left out
            scores[Tag.MEASUREMENT] += LEAST
        return scores

    def _severity(self, sentence: Sentence, facts: tuple[Fact, ...]) -> Severity:
        """The worst that is said and not denied; OK if something is well, or every fault is denied."""
        folded = fold(sentence.text)
        kept = self._without_denied(folded, sentence, facts)
        for severity in _SEVERITIES:
            if any(pattern.search(kept) for pattern in self._words.severities.get(severity, ())):
                return severity
        if any(pattern.search(folded) for pattern in self._words.severities.get(Severity.OK, ())):
            return Severity.OK
        faults = [cue.pattern for cue in self._words.tags.get(Tag.FINDING, ()) if cue.weight >= STRONG]
        is_denied = any(pattern.search(folded) for pattern in faults) and not any(pattern.search(kept) for pattern in faults)
        return Severity.OK if is_denied else Severity.UNSTATED

    def _without_denied(self, folded: str, sentence: Sentence, facts: tuple[Fact, ...]) -> str:
        """The sentence without what its denials reach: in English on to the clause's end, in Japanese back to its start."""
        marks, ends = list(folded), ",;.、。" if self._words.language == "ja" else ",;."
        for fact in facts:
            if fact.kind is not FactKind.NEGATION:
                continue
            start, end = fact.span.start - sentence.span.start, fact.span.end - sentence.span.start
            if self._words.language == "ja":
                reach = (max((folded.rfind(mark, 0, start) for mark in ends), default=-1) + 1, end)
            else:
                stops = [at for mark in (*ends, " but ", " except ") if (at := folded.find(mark, end)) >= 0]
                reach = (start, min(stops, default=len(folded)))
            marks[slice(*reach)] = " " * (reach[1] - reach[0])
        return "".join(marks)


def choose_tagger(sentences: Sequence[Sentence], rules: Tagger, model: Tagger | None) -> Tagger:
    """The model if there is one and the note is long enough for it to matter."""
    return model if model is not None and len(sentences) > SHORT_SENTENCES else rules
