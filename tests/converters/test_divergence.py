"""The fidelity figures against slow arithmetic in float64, one position at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from converters.divergence import ROWS_AT_ONCE, Divergence, log_softmax

N, VOCAB = ROWS_AT_ONCE + 7, 50


@pytest.fixture
def pair() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reference logits, slightly other logits, next tokens with one position that has none."""
    rng = np.random.default_rng(20261130)
    reference = (rng.standard_normal((N, VOCAB)) * 4).astype(np.float32)
    candidate = (reference + rng.standard_normal((N, VOCAB))).astype(np.float32)
    next_ids = rng.integers(0, VOCAB, N)
    next_ids[-1] = -1
    return reference, candidate, next_ids


def slow_log_probabilities(row: np.ndarray) -> list[float]:
    total = sum(math.exp(float(value)) for value in row)
    return [float(value) - math.log(total) for value in row]


def measured(reference: np.ndarray, candidate: np.ndarray, next_ids: np.ndarray) -> Divergence:
    divergence = Divergence()
    divergence.add(reference, candidate, next_ids)
    return divergence


def test_kl_equals_the_definition_summed_in_float64(pair: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    reference, candidate, next_ids = pair
    wanted = []
    for p_row, q_row in zip(reference, candidate, strict=True):
        p, q = slow_log_probabilities(p_row), slow_log_probabilities(q_row)
        wanted.append(sum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True)))
    got = measured(reference, candidate, next_ids)
    np.testing.assert_allclose(got.kl, wanted, atol=2e-6)
    assert got.kl_mean == pytest.approx(np.mean(wanted), abs=1e-6)
    assert got.kl_p99 == pytest.approx(np.percentile(wanted, 99), abs=1e-6)
    swapped = measured(candidate, reference, next_ids)
    assert abs(swapped.kl_mean - got.kl_mean) > 1e-4, "KL is not symmetric; if swapping changes nothing, the sides are not told apart"


def test_perplexities_skip_the_position_without_a_next_token(pair: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    reference, candidate, next_ids = pair
    wanted = [-slow_log_probabilities(row)[token] for row, token in zip(reference[:-1], next_ids[:-1], strict=True)]
    got = measured(reference, candidate, next_ids)
    assert got.n_scored == N - 1
    assert got.reference_perplexity == pytest.approx(math.exp(np.mean(wanted)), rel=1e-5)
    assert got.perplexity != pytest.approx(got.reference_perplexity, rel=1e-3)


def test_a_model_beside_itself_has_no_divergence(pair: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    reference, candidate, next_ids = pair
    same, other = measured(reference, reference, next_ids), measured(reference, candidate, next_ids)
    assert (same.kl_mean, same.top1_agreement, same.max_abs_logit_error) == (0.0, 1.0, 0.0)
    assert other.kl_mean > 0.01 and other.top1_agreement < 1.0
    assert other.max_abs_logit_error == np.abs(reference - candidate).max()


def test_blocks_add_up_to_the_whole(pair: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    reference, candidate, next_ids = pair
    parts = Divergence()
    for rows in (slice(0, 10), slice(10, 11), slice(11, N)):
        parts.add(reference[rows], candidate[rows], next_ids[rows])
    whole = measured(reference, candidate, next_ids)
    assert parts.kl == whole.kl
    assert parts.nll == pytest.approx(whole.nll, rel=1e-12)


def test_a_single_nan_shows_in_the_figures(pair: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    reference, candidate, next_ids = pair
    candidate[3, 4] = np.nan
    got = measured(reference, candidate, next_ids)
    assert math.isnan(got.kl_mean) and math.isnan(got.max_abs_logit_error)


def test_large_logits_do_not_overflow() -> None:
    logits = np.array([[1e4, 0.0, -1e4]], dtype=np.float32)
    assert log_softmax(logits).tolist() == [[0.0, -1e4, -2e4]]


def test_shapes_that_differ_are_refused_with_numbers() -> None:
    with pytest.raises(ValueError, match=r"reference \(2, 3\), candidate \(2, 4\)"):
        Divergence().add(np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32), np.zeros(2, np.int64))
