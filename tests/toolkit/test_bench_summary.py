"""Each figure by hand, and the order of rounds."""

from __future__ import annotations

import pytest

from toolkit.bench_summary import Summary, interleaved, summarize


def test_a_summary_holds_count_extremes_and_the_middle() -> None:
    assert summarize([3.0, 1.0, 10.0, 2.0]) == Summary(n=4, min=1.0, median=2.5, max=10.0, values=(3.0, 1.0, 10.0, 2.0))
    assert summarize([5.0]) == Summary(n=1, min=5.0, median=5.0, max=5.0, values=(5.0,))


def test_the_median_is_not_the_mean() -> None:
    values = [1.0, 1.0, 100.0]
    assert summarize(values).median == 1.0
    assert sum(values) / len(values) != summarize(values).median  # the mutant: one disturbed run would move it


def test_no_measurement_has_no_summary() -> None:
    with pytest.raises(ValueError, match="no measurement"):
        summarize([])


def test_every_side_runs_once_a_round_and_the_order_turns() -> None:
    assert list(interleaved(["a", "b", "c"], 2)) == [(0, "a"), (0, "b"), (0, "c"), (1, "c"), (1, "b"), (1, "a")]
    assert list(interleaved(["a", "b"], 0)) == []
