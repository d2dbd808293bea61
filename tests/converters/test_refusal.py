import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converters.gates import verdict
from converters.recipe import load_recipe
from converters.refusal import broken_promise, failed_gates
from tests.converters.test_gates import GOOD


def judged(recipe_name: str, **figures):
    recipe = load_recipe(recipe_name)
    fidelity = dataclasses.replace(GOOD, **figures)
    return recipe, dataclasses.replace(fidelity, verdict=verdict(fidelity, recipe.gates))


def test_figures_that_pass_are_no_failure():
    assert failed_gates("b", *judged("int8")) is None
    assert failed_gates("b", *judged("int4-g32", kl_mean=3.0)) is None, "int4-g32 is reported, not gated"


@given(st.floats(min_value=0.0301, max_value=50))
def test_the_advised_max_kl_is_enough_and_not_much_more(kl_mean):
    recipe, fidelity = judged("int8", kl_mean=kl_mean)
    error = failed_gates("b", recipe, fidelity)
    assert error is not None and error.exit_code == 6
    advised = float(error.fix.split("--max-kl ")[1].split()[0])
    assert kl_mean <= advised <= kl_mean * 1.11
    assert verdict(fidelity, recipe.with_max_kl(advised).gates) == "pass"


@pytest.mark.parametrize("kl_mean", [float("nan"), float("inf")])
def test_no_max_kl_is_advised_for_what_is_no_number(kl_mean):
    error = failed_gates("b", *judged("int8", kl_mean=kl_mean))
    assert error is not None and "--max-kl" not in error.fix


def test_the_promise_is_kept_within_ten_percent_and_the_figures_are_in_the_error():
    recipe = load_recipe("int8")
    assert broken_promise("b", recipe, promised=8.0, measured=8.7) is None
    error = broken_promise("b", recipe, promised=8.0, measured=32.0)
    assert error is not None and error.exit_code == 1 and "32.000" in error.why and "8.000" in error.why
