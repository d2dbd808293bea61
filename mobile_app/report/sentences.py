"""Where sentences end in what a speech model wrote: at punctuation, and where that is missing at pauses."""

from __future__ import annotations

import re

from mobile_app.report.evidence import Sentence, Span
from mobile_app.report.folded import fold
from mobile_app.transcript import NoteTranscript

PAUSE_S = 1.0
# A speech model that writes no punctuation: after so many characters the end of a segment is the end of a sentence.
LONG_CHARS, LONGEST_CHARS = 160, 600
_END = re.compile(r"[。?!]+|\.+(?=\s|$)|(?<=です|ます|した|せん)(?=\s)|(?<=ください)(?=\s)")
_ABBREVIATION = re.compile(r"(?:\b(?:mr|mrs|ms|dr|st|approx|fig|vs|etc|e\.g|i\.e|max|min|temp|dept|a\.m|p\.m)|\b[a-z])$", re.IGNORECASE)
_NUMBER_WORD = re.compile(r"\b(?:no|nos)$", re.IGNORECASE)


def split_sentences(transcript: NoteTranscript) -> tuple[Sentence, ...]:
    """The sentences of a transcript, in order; between them there is nothing but spaces."""
    text, folded = transcript.text, fold(transcript.text)
    cuts = {match.end() for match in _END.finditer(folded) if not _is_inside(folded, match)}
    cuts |= _pauses(transcript)
    cuts = _with_segment_ends(transcript, cuts)
    sentences: list[Sentence] = []
    start = 0
    for end in sorted(cuts | {len(text)}):
        for piece in _pieces(text, start, end):
            if any(char.isalnum() for char in text[piece.start : piece.end]):
                sentences.append(Sentence(len(sentences), piece, text[piece.start : piece.end]))
        start = end
    return tuple(sentences)


def _is_inside(folded: str, match: re.Match[str]) -> bool:
    """Whether a full stop belongs to an abbreviation: `No. 3`, `Dr. Sato`, `9 a.m. today`."""
    if match.group() != ".":
        return False
    before, after = folded[max(0, match.start() - 12) : match.start()], folded[match.end() : match.end() + 2].strip()
    if _NUMBER_WORD.search(before):
        return after.isdigit()
    # `Valve A. Then ...`: after a capital the sentence has ended, except behind a title, which a name follows.
    if re.search(r"\b(?:mr|mrs|ms|dr|st)$", before, re.IGNORECASE):
        return True
    return bool(_ABBREVIATION.search(before)) and bool(after) and not after.isupper()


def _pauses(transcript: NoteTranscript) -> set[int]:
    """Ends of segments that are followed by a pause."""
    ends = set()
    for left, right in zip(transcript.segments, transcript.segments[1:], strict=False):
        no_times = left.end_s is None or right.start_s is None  # a plain text: a line is a sentence
        if no_times or (right.start_s or 0.0) - (left.end_s or 0.0) >= PAUSE_S:
            ends.add(left.end)
    return ends


def _with_segment_ends(transcript: NoteTranscript, cuts: set[int]) -> set[int]:
    known = sorted(cuts)
    found, last, at = set(cuts), 0, 0
    for segment in transcript.segments:
        while at < len(known) and known[at] <= segment.end:
            last, at = known[at], at + 1
        if segment.end - last > LONG_CHARS:
            last = segment.end
            found.add(last)
    return found


def _pieces(text: str, start: int, end: int) -> list[Span]:
    """text[start:end] without outer spaces, in pieces a reader can take in."""
    pieces = []
    while end - start > LONGEST_CHARS:
        window = text[start : start + LONGEST_CHARS]
        cut = max(window.rfind(mark) for mark in ("、", ",", " ")) + 1 or LONGEST_CHARS
        pieces.append((start, start + cut))
        start += cut
    pieces.append((start, end))
    spans = []
    for first, last in pieces:
        said = text[first:last]
        left = first + len(said) - len(said.lstrip())
        if said.strip():
            spans.append(Span(left, left + len(said.strip())))
    return spans
