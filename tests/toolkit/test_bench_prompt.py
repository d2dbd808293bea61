from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.bench_prompt import MEASURED, WARM_UP, make_prompt
from toolkit.errors import EngineError, UsageError


def of_characters(text: str) -> int:
    return len(text)


def of_words(text: str) -> int:
    """A start token and one for each word or mark."""
    return 1 + len(re.findall(r"\w+|[^\w\s]", text))


def of_pairs(text: str) -> int:
    """Two tokens a character: nothing counts an odd number."""
    return 2 * len(text)


@pytest.mark.parametrize("count", [of_characters, of_words])
@pytest.mark.parametrize("n_tokens", [2, 3, 17, 256, 4096])
@pytest.mark.parametrize("text", [MEASURED, WARM_UP])
def test_a_prompt_has_exactly_the_tokens_asked_for(count: Callable[[str], int], n_tokens: int, text: str) -> None:
    prompt = make_prompt(count, n_tokens, text=text)
    assert count(prompt) == n_tokens
    assert prompt == make_prompt(count, n_tokens, text=text), "the same each time"


@given(st.integers(2, 2000))
def test_a_prompt_of_any_length_has_exactly_it_and_begins_with_the_same_words(n_tokens: int) -> None:
    prompt = make_prompt(of_words, n_tokens)
    assert of_words(prompt) == n_tokens
    assert of_words(prompt + " a") != n_tokens  # the mutant: one filler too many
    assert MEASURED.startswith(prompt[: len(MEASURED)].removesuffix(" a"))


def test_warm_up_and_measured_prompt_share_no_beginning() -> None:
    assert make_prompt(of_characters, 64)[:1] != make_prompt(of_characters, 64, text=WARM_UP)[:1]


def test_a_prompt_that_start_tokens_fill_alone_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        make_prompt(of_words, 1)
    assert "1 before the first text" in caught.value.why and "--prompt-tokens 2" in caught.value.fix


def test_a_count_no_text_has_is_refused_with_one_that_works() -> None:
    with pytest.raises(EngineError) as caught:
        make_prompt(of_pairs, 257)
    assert caught.value.fix == "use --prompt-tokens 256"
    assert of_pairs(make_prompt(of_pairs, 256)) == 256
