import dataclasses
import math

import pytest

from converters.gates import GATES, broken_gates, verdict
from toolkit.manifest import Fidelity

GOOD = Fidelity(
    n_tokens=2000,
    kl_mean=0.02,
    kl_p99=0.2,
    top1_agreement=0.95,
    perplexity=12.1,
    reference_perplexity=12.0,
    max_abs_logit_error=5e-4,
    greedy_tokens_equal=64,
    greedy_tokens_compared=64,
    verdict="reported",
    word_error_rate=0.02,
    reference_word_error_rate=0.015,
)
LIMITS = {
    "kl_mean": 0.03,
    "kl_p99": 0.5,
    "max_abs_logit_error": 1e-3,
    "top1_agreement": 0.9,
    "perplexity_ratio": 1.05,
    "greedy_tokens_equal": 64.0,
    "word_error_rate_increase": 0.02,
}
WORSE = {
    "kl_mean": 0.031,
    "kl_p99": 0.51,
    "max_abs_logit_error": 2e-3,
    "top1_agreement": 0.89,
    "perplexity": 13.0,
    "greedy_tokens_equal": 63,
    "word_error_rate": 0.05,
}


def test_good_figures_pass_every_gate():
    assert set(LIMITS) == set(GATES)
    assert broken_gates(GOOD, LIMITS) == [] and verdict(GOOD, LIMITS) == "pass"


@pytest.mark.parametrize("figure", sorted(WORSE))
def test_one_worse_figure_breaks_exactly_its_gate(figure):
    broken = broken_gates(dataclasses.replace(GOOD, **{figure: WORSE[figure]}), LIMITS)
    assert len(broken) == 1 and broken[0].startswith(figure)
    assert verdict(dataclasses.replace(GOOD, **{figure: WORSE[figure]}), LIMITS) == "fail"


@pytest.mark.parametrize("figure", sorted(set(WORSE) - {"greedy_tokens_equal"}))
def test_a_figure_that_is_not_a_number_holds_no_gate(figure):
    assert broken_gates(dataclasses.replace(GOOD, **{figure: math.nan}), LIMITS)


def test_a_limit_itself_still_passes():
    assert broken_gates(dataclasses.replace(GOOD, kl_mean=0.03), LIMITS) == []


def test_without_gates_figures_are_reported_unless_the_kl_is_not_finite():
    assert verdict(GOOD, {}) == "reported"
    assert verdict(dataclasses.replace(GOOD, kl_mean=math.inf), {}) == "fail"
