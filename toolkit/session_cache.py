"""A session's KV cache, and what is in it: what decides how much of the next turn's text need not be prefilled again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.backends.base import NativeEngine, NativeSession

_LONGEST_STOP = 64  # characters of a stop token's text


@dataclass
class Cache:
    """A KV cache and what is in it: the text, and after it perhaps a stop token that the text does not show.

    Args:
        native: The engine's session that holds it.
        max_tokens: Most tokens an answer of that session has.
        text: What it holds.
        n_tokens: How many tokens that is.
        has_stop_token: Whether a stop token follows the text.
    """

    native: NativeSession
    max_tokens: int
    text: str = ""
    n_tokens: int = 0
    has_stop_token: bool = False

    def take_prompt(self, prompt: str, *, n_new: int) -> None:
        """It is going to hold all of `prompt`, of which `n_new` tokens are new."""
        self.text = prompt
        self.n_tokens += n_new

    def take_answer(self, text: str, *, n_tokens: int, has_stop_token: bool) -> None:
        """An answer was generated after the prompt."""
        self.text += text
        self.n_tokens += n_tokens
        self.has_stop_token = has_stop_token

    def continuation(self, prompt: str, engine: NativeEngine, stop_token_ids: Sequence[int]) -> str | None:
        """What of `prompt` comes after the cache's content; None when the cache holds anything else."""
        if not prompt.startswith(self.text):
            return None
        rest = prompt[len(self.text) :]
        if not self.has_stop_token:
            return rest or None
        stops = [[token_id] for token_id in stop_token_ids]
        for end in range(1, min(len(rest), _LONGEST_STOP)):
            if engine.tokenize(rest[:end]) in stops:
                return rest[end:]
        return None
