"""Repeated measurements: n, min, median and max, and the order of rounds that keeps several sides comparable."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Side = TypeVar("Side")


@dataclass(frozen=True)
class Summary:
    """Of repeated measurements, and these in the order they were taken. Never a mean: one disturbed round would move it."""

    n: int
    min: float
    median: float
    max: float
    values: tuple[float, ...]


def summarize(values: Sequence[float]) -> Summary:
    """The summary of one measurement or more.

    Raises:
        ValueError: There are none.
    """
    if not values:
        raise ValueError("no measurement to summarize")
    return Summary(len(values), min(values), statistics.median(values), max(values), tuple(values))


def interleaved(sides: Sequence[Side], rounds: int) -> Iterator[tuple[int, Side]]:
    """(round, side): every side once a round, in reverse order every other round, so that what drifts hits all sides alike."""
    for index in range(rounds):
        for side in sides if index % 2 == 0 else reversed(sides):
            yield index, side
