"""A prompt of exactly so many tokens, made with the bundle's own tokenizer."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.errors import EngineError, UsageError

# Two texts, because an engine may keep what it prefilled last: the warm-up must not have seen the prompt that is measured.
MEASURED = "The inspector walked along the line and wrote down what each pump, valve and gauge was doing that morning. "
WARM_UP = "On the river a ferry carries people, bicycles and boxes of fruit from one bank to the other until late at night. "
_FILLERS = (" a", " the", ".", ",", "a", "x", "1", " ")  # short ones, at least one of which is a single token behind any text


def longest_prompt(count: Callable[[str], int], n_tokens: int, *, text: str = MEASURED) -> str:
    """As many words of `text`, over and over, as fit into `n_tokens`; see `make_prompt`."""
    words = text.split()
    words = words * (n_tokens // len(words) + 1)
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        if count(" ".join(words[:middle])) <= n_tokens:
            low = middle
        else:
            high = middle - 1
    return " ".join(words[:low])


def make_prompt(count: Callable[[str], int], n_tokens: int, *, text: str = MEASURED) -> str:
    """As many words of `text`, over and over, as fit into `n_tokens`, and fillers behind them.

    Args:
        count: Tokens of a text as the engine prefills it, what it puts before the first included.
        n_tokens: What the prompt must count.
        text: Words to take.

    Raises:
        UsageError: The shortest prompt counts more.
        EngineError: With this tokenizer no text counts exactly that.
    """
    prompt = longest_prompt(count, n_tokens, text=text)
    while (held := count(prompt)) < n_tokens:
        longer = next((prompt + filler for filler in _FILLERS if held < count(prompt + filler) <= n_tokens), None)
        if longer is None:
            raise EngineError(
                f"no prompt of exactly {n_tokens} tokens can be made with this bundle's tokenizer",
                why=f"the nearest one below has {held}",
                fix=f"use --prompt-tokens {held}" if held > count("") else f"use --prompt-tokens {n_tokens + 8}",
            )
        prompt = longer
    if not prompt:
        least = count("") + 1
        raise UsageError(
            f"a prompt of {n_tokens} tokens cannot be made",
            why=f"the engine puts {least - 1} before the first text of every prompt",
            fix=f"use --prompt-tokens {least} or more",
        )
    return prompt
