from __future__ import annotations

import math
from collections import Counter

import pytest

np = pytest.importorskip("numpy", reason="engines that leave the choice to the caller bring numpy")

from toolkit.backends.base import Sampling  # noqa: E402
from toolkit.backends.sampler import Sampler  # noqa: E402

LOGITS = np.array([0.0, 2.0, -1.0, 3.0, 2.5], np.float32)


def drawn(sampling: Sampling, n: int = 4000) -> Counter[int]:
    sampler = Sampler(sampling)
    return Counter(sampler.pick(LOGITS) for _ in range(n))


def test_temperature_0_takes_the_likeliest_and_the_first_of_equals() -> None:
    assert Sampler(Sampling()).pick(LOGITS) == 3
    assert Sampler(Sampling()).pick(np.zeros(5, np.float32)) == 0


def test_shares_are_those_of_the_softmax_at_the_temperature() -> None:
    found = drawn(Sampling(temperature=2.0, top_k=5, top_p=1.0, seed=1))
    weights = [math.exp(value / 2.0) for value in LOGITS]
    for token_id, weight in enumerate(weights):
        assert found[token_id] / 4000 == pytest.approx(weight / sum(weights), abs=0.03)


def test_top_k_keeps_the_k_likeliest() -> None:
    assert set(drawn(Sampling(temperature=5.0, top_k=2, top_p=1.0))) == {3, 4}
    assert set(drawn(Sampling(temperature=5.0, top_k=1, top_p=1.0))) == {3}
    assert set(drawn(Sampling(temperature=50.0, top_k=1000, top_p=1.0))) == {0, 1, 2, 3, 4}, "more than the vocabulary holds"


def test_top_p_keeps_the_fewest_that_reach_it_before_the_temperature_flattens_them() -> None:
    """Shares of the three likeliest are .49, .30 and .18; at temperature 50 all five would be about equal."""
    assert set(drawn(Sampling(temperature=50.0, top_k=5, top_p=0.4))) == {3}
    assert set(drawn(Sampling(temperature=50.0, top_k=5, top_p=0.7))) == {3, 4}
    assert set(drawn(Sampling(temperature=50.0, top_k=5, top_p=0.9))) == {3, 4, 1}


def test_a_seed_repeats_and_another_differs() -> None:
    one, same, other = (Sampler(Sampling(1.0, 5, 1.0, seed)) for seed in (7, 7, 8))
    picks = [[sampler.pick(LOGITS) for _ in range(40)] for sampler in (one, same, other)]
    assert picks[0] == picks[1] != picks[2]


@pytest.mark.parametrize("damage", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_an_error_and_not_a_token(damage: float, temperature: float) -> None:
    broken = LOGITS.copy()
    broken[2] = damage
    with pytest.raises(ValueError, match=str(damage)):
        Sampler(Sampling(temperature)).pick(broken)
