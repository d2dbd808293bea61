"""A prompt of a given length, the same on every machine."""

from __future__ import annotations

from collections.abc import Callable

WORDS = "The inspector walked along the line and wrote down what each pump, valve and gauge was doing that morning. "
FILLER = " a"  # one token of every vocabulary in use


def prompt_of(count: Callable[[str], int], n_tokens: int) -> str:
    """Text of `n_tokens` tokens; fewer only where `FILLER` is more than one.

    Args:
        count: Tokens of a text.
        n_tokens: More than an empty text counts.
    """
    text = WORDS * (n_tokens // max(1, count(WORDS) - count("")) + 1)
    words = text.split(" ")
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        if count(" ".join(words[:middle])) <= n_tokens:
            low = middle
        else:
            high = middle - 1
    text = " ".join(words[:low])
    while count(text + FILLER) <= n_tokens:
        text += FILLER
    return text
