"""Prompts have exactly the length that was asked for, whatever the tokenizer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.prompt import FILLER, WORDS, prompt_of


def by_words(text: str) -> int:
    """One token a word, and one at the start."""
    return 1 + len(text.split())


def by_bytes(text: str) -> int:
    return len(text)


@given(st.integers(2, 2000))
def test_a_prompt_counted_in_words_has_exactly_its_length(n_tokens: int) -> None:
    text = prompt_of(by_words, n_tokens)
    assert by_words(text) == n_tokens
    assert by_words(text + FILLER) != n_tokens  # the mutant: one filler too many


@pytest.mark.parametrize(("count", "slack"), [(by_bytes, len(FILLER) - 1), (lambda text: len(text) // 4, 0)])
def test_a_prompt_is_never_longer_and_as_long_as_the_filler_allows(count: Callable[[str], int], slack: int) -> None:
    for n_tokens in (8, 64, 320, 1216):
        assert n_tokens - slack <= count(prompt_of(count, n_tokens)) <= n_tokens


def test_the_same_length_gives_the_same_text() -> None:
    assert prompt_of(by_words, 300) == prompt_of(by_words, 300)
    assert prompt_of(by_words, 300).startswith(WORDS)
