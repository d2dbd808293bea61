"""Repeated measurements: n, min, median, max, ratios of pairs, and the order that keeps two sides comparable."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Summary:
    """What is printed of repeated measurements. Never a mean: one disturbed run would move it."""

    n: int
    min: float
    median: float
    max: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def summarize(values: Sequence[float]) -> Summary:
    """The summary of one or more measurements.

    Raises:
        ValueError: There are none.
    """
    if not values:
        raise ValueError("no measurement to summarize")
    return Summary(len(values), min(values), statistics.median(values), max(values))


def paired_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """ours / theirs, round by round: both sides of a ratio were measured next to each other.

    Raises:
        ValueError: The sides have different lengths.
    """
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def interleaved(sides: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """(round, side): every side once a round, in reverse order every other round, so that drift hits all sides alike."""
    for index in range(rounds):
        for side in sides if index % 2 == 0 else reversed(sides):
            yield index, side
