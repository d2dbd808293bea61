"""The types of a report. Every field says where in the transcript it was said; there is no field without evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum


class Tag(StrEnum):
    """What a sentence is for."""

    PLACE = "place"
    FINDING = "finding"
    MEASUREMENT = "measurement"
    ACTION = "action"
    QUESTION = "question"
    OTHER = "other"


class Severity(StrEnum):
    """How bad a finding is, as the words of its sentence say. OK: a fault is denied, or something is said to be well."""

    CRITICAL = "critical"
    MAJOR = "major"
    MINOR = "minor"
    OK = "ok"
    UNSTATED = "unstated"


class FactKind(StrEnum):
    """What code finds in a sentence, without any model."""

    NUMBER = "number"
    DATE = "date"
    TIME = "time"
    IDENTIFIER = "identifier"
    NAME = "name"
    NEGATION = "negation"


@dataclass(frozen=True)
class Span:
    """text[start:end] of a transcript."""

    start: int
    end: int

    def holds(self, other: Span) -> bool:
        return self.start <= other.start and other.end <= self.end

    def meets(self, other: Span) -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class Sentence:
    """One sentence of a transcript."""

    index: int
    span: Span
    text: str


@dataclass(frozen=True)
class Fact:
    """Something found by code, its text copied.

    Args:
        kind: What it is.
        span: Where it was said.
        text: text[span], unchanged.
        value: Of a number.
        second_value: Of a range or a pair, like 120 over 80.
        relation: `to` of a range, `over` of a pair, else empty.
        unit: Of a number, as `units.toml` spells it; empty without one.
        is_measured: The unit is a physical one, not a counter.
        qualifier: What limits a number, copied: about, at least, 以上.
        normal: A date as ISO 8601 as far as it is known, or a time of day as HH:MM.
        is_retracted: The speaker corrected it in the next breath.
    """

    kind: FactKind
    span: Span
    text: str
    value: Decimal | None = None
    second_value: Decimal | None = None
    relation: str = ""
    unit: str = ""
    is_measured: bool = False
    qualifier: str = ""
    normal: str = ""
    is_retracted: bool = False


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence with its facts, and what a tagger made of it."""

    sentence: Sentence
    facts: tuple[Fact, ...]
    tag: Tag
    severity: Severity = Severity.UNSTATED


@dataclass(frozen=True)
class Quote:
    """Words of the transcript: `text` is text[span] without its fillers. Times are of the sound, None where unknown."""

    text: str
    span: Span
    start_s: float | None = None
    end_s: float | None = None


@dataclass(frozen=True)
class When:
    """A date or time of day as said, and as code reads it; `normal` is empty where that takes more than was said."""

    quote: Quote
    normal: str


@dataclass(frozen=True)
class Finding:
    """What was seen, and how bad it is. `is_negated`: the sentence denies something; its words say what."""

    quote: Quote
    severity: Severity
    is_negated: bool


@dataclass(frozen=True)
class Measurement:
    """A number with a physical unit: the fact, and the sentence it was said in. `what` is what was measured, if that was said."""

    quote: Quote
    fact: Fact
    what: Quote | None


@dataclass(frozen=True)
class Action:
    """What is to be done, by whom and until when, as far as that was said."""

    quote: Quote
    owner: Quote | None
    due: When | None


@dataclass(frozen=True)
class Report:
    """A whole report. `not_placed` holds the sentences that reached no field, so that nothing said is lost."""

    title: Quote | None = None
    site: Quote | None = None
    time: When | None = None
    summary: tuple[Quote, ...] = ()
    findings: tuple[Finding, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    actions: tuple[Action, ...] = ()
    questions: tuple[Quote, ...] = ()
    not_placed: tuple[Quote, ...] = ()
    tagged: tuple[TaggedSentence, ...] = field(default=(), repr=False)
    tagger: str = ""
    n_dropped: int = 0
