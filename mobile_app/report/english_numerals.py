"""Numbers in English words: twenty-five, two point five, one hundred and twenty, two zero three, half a, a dozen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from mobile_app.report.evidence import Span
from mobile_app.report.number import MAX_DIGITS, Number
from mobile_app.report.span_set import SpanSet

_NAMES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
ONES = {name: value for value, name in enumerate(_NAMES.split())}
TENS = {name: 10 * value for value, name in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)}
SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6}
_WORD = re.compile(r"[A-Za-z]+")
_GAP = re.compile(r"[ -]+")
# `one` is a number unless it stands for a thing: the other one, this one.
_PRONOUN_BEFORE = re.compile(
    r"\b(?:this|that|the|other|which|no|any|each|every|next|last|another|old|new|good|bad|left|right)[ -]+$", re.IGNORECASE
)
_FRACTIONS = (
    (re.compile(r"\bthree quarters of an?\b", re.IGNORECASE), Decimal("0.75")),
    (re.compile(r"\bhalf (?:of )?an?\b", re.IGNORECASE), Decimal("0.5")),
    (re.compile(r"\ba quarter of an?\b", re.IGNORECASE), Decimal("0.25")),
    (re.compile(r"\ba dozen\b", re.IGNORECASE), Decimal(12)),
)


@dataclass
class _Reading:
    """A number being read. `current` is what stands below the last scale, None before the first word.

    `hundreds`: `four fifty` is 450, as lengths and pressures are read out; in a name of a part it is 4, and 50 is something else.
    """

    total: int = 0
    current: int | None = None
    hundreds: bool = True

    def take(self, word: str) -> bool:
        """Read one more word; False if it cannot go on this number."""
        if word in SCALES:
            return self._scale(SCALES[word])
        value = ONES.get(word, TENS.get(word, 0))
        below = 100 if word in TENS or value >= 10 else 10
        if self.hundreds and word in TENS and self.total == 0 and 1 <= (self.current or 0) <= 9:  # four fifty
            self.current = 100 * (self.current or 0) + value
            return True
        if self.current is not None and not (self.current and value and (self.current % below == 0) and self._has_room(value)):
            return False
        self.current = (self.current or 0) + value
        return True

    def _has_room(self, value: int) -> bool:
        return (self.current or 0) >= 100 or (20 <= (self.current or 0) < 100 and value < 10)

    def _scale(self, scale: int) -> bool:
        current = 1 if self.current is None and not self.total else self.current
        if not current or (scale == 100 and current >= 100) or (self.total and scale >= 1000 and self.total < scale):
            return False
        if scale == 100:
            self.current = current * 100
        else:
            self.total, self.current = self.total + current * scale, None
        return True

    @property
    def value(self) -> int:
        return self.total + (self.current or 0)


def english_numbers(folded: str, *, hundreds: bool = True) -> list[Number]:
    """Every number in words, left to right. `hundreds`: see `_Reading`."""
    found = [Number(Span(*match.span()), value, True) for pattern, value in _FRACTIONS for match in pattern.finditer(folded)]
    taken = SpanSet(number.span for number in found)
    for run in _runs(folded):
        found += [number for number in _numbers_of(folded, run, hundreds) if not taken.meets(number.span)]
    return sorted(found, key=lambda number: number.span.start)


def _runs(folded: str) -> list[list[re.Match[str]]]:
    """Words of numbers that follow each other, with the `and` and `point` that join them."""
    runs: list[list[re.Match[str]]] = []
    run: list[re.Match[str]] = []
    for match in _WORD.finditer(folded):
        if run and not _GAP.fullmatch(folded, run[-1].end(), match.start()):
            runs.append(run)
            run = []
        word = match.group().lower()
        if word in ONES or word in TENS or word in SCALES or (run and word in ("oh", "and", "point")) or (not run and word == "point"):
            run.append(match)
        elif run:
            runs.append(run)
            run = []
    return [*runs, run] if run else runs


def _numbers_of(folded: str, run: list[re.Match[str]], hundreds: bool) -> list[Number]:
    words = [match.group().lower() for match in run]
    found: list[Number] = []
    at = 0
    while at < len(run):
        if words[at] == "point":
            value, end = _decimals(words, at, 0)
            if end == at:
                at += 1
                continue
        elif words[at] in ("and", "oh"):
            at += 1
            continue
        else:
            value, end = _one_number(words, at, hundreds)
        is_thing = words[at:end] == ["one"] and _PRONOUN_BEFORE.search(folded[max(0, run[at].start() - 24) : run[at].start()])
        if not is_thing:
            found.append(Number(Span(run[at].start(), run[end - 1].end()), value, True))
        at = end
    return found


def _one_number(words: list[str], at: int, hundreds: bool) -> tuple[Decimal, int]:
    """The number that begins at a word, and the index of the word after it."""
    end = at
    while end < len(words) and end - at <= MAX_DIGITS and (ONES.get(words[end], 10) < 10 or words[end] == "oh"):
        end += 1
    if 2 <= end - at <= MAX_DIGITS and not (end < len(words) and words[end] in SCALES):  # digit by digit: two zero three
        whole = int("".join(str(ONES.get(word, 0)) for word in words[at:end]))
        return _decimals(words, end, whole)
    reading, end = _Reading(hundreds=hundreds), at
    while end < len(words):
        joins = words[end] == "and" and end > at and words[end - 1] in SCALES and end + 1 < len(words)
        word = words[end + 1] if joins else words[end]
        if word in ("and", "point", "oh") or (joins and word in SCALES) or not reading.take(word):
            break
        end += 2 if joins else 1
    return _decimals(words, max(end, at + 1), reading.value)


def _decimals(words: list[str], at: int, whole: int) -> tuple[Decimal, int]:
    """`whole` with the decimals spoken after a `point` at `at`, if there are any."""
    digits, end = "", at + 1
    if at < len(words) and words[at] == "point":
        while end < len(words) and len(digits) < MAX_DIGITS and (words[end] == "oh" or ONES.get(words[end], 10) < 10):
            digits, end = digits + str(ONES.get(words[end], 0)), end + 1
        if not digits and end < len(words) and (words[end] in TENS or words[end] in ONES):
            reading = _Reading()
            while end < len(words) and words[end] not in ("and", "point", "oh", *SCALES) and reading.take(words[end]):
                end += 1
            digits = str(reading.value)
    return (Decimal(f"{whole}.{digits}"), end) if digits else (Decimal(whole), at)
