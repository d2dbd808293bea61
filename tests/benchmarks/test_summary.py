"""Summaries: each figure by hand, and the order of rounds."""

from __future__ import annotations

import pytest

from benchmarks.summary import Summary, interleaved, paired_ratios, summarize


def test_a_summary_holds_count_extremes_and_the_middle() -> None:
    assert summarize([3.0, 1.0, 10.0, 2.0]) == Summary(n=4, min=1.0, median=2.5, max=10.0)
    assert summarize([5.0]) == Summary(n=1, min=5.0, median=5.0, max=5.0)


def test_the_median_is_not_the_mean() -> None:
    values = [1.0, 1.0, 100.0]
    assert summarize(values).median == 1.0
    assert sum(values) / len(values) != summarize(values).median  # the mutant: one disturbed run would move it


def test_no_measurement_has_no_summary() -> None:
    with pytest.raises(ValueError, match="no measurement"):
        summarize([])


def test_ratios_are_taken_round_by_round() -> None:
    ours, theirs = [2.0, 40.0], [1.0, 10.0]
    assert paired_ratios(ours, theirs) == [2.0, 4.0]
    assert paired_ratios(ours, theirs[::-1]) != [2.0, 4.0]  # the mutant: sides of different rounds


def test_sides_of_different_length_have_no_ratio() -> None:
    with pytest.raises(ValueError):
        paired_ratios([1.0, 2.0], [1.0])


def test_every_side_runs_once_a_round_and_the_order_turns() -> None:
    assert list(interleaved(["a", "b", "c"], 2)) == [(0, "a"), (0, "b"), (0, "c"), (1, "c"), (1, "b"), (1, "a")]
    assert list(interleaved(["a", "b"], 0)) == []
