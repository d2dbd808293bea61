"""Tokenizer and chat template of bundles that carry them as Hugging Face checkpoints do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.backends.base import Message
from toolkit.errors import one_line


class HfText:
    """See `toolkit.backends.token_loop.TokenText`. `tokenizer` is one of transformers', or mlx_lm's around it.

    Where the tokenizer itself puts a BOS before every text, that BOS is this project's start token, and what the template
    writes of it is taken out again: so a session has it once, with the template and without.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        bare = tokenizer.encode("a", add_special_tokens=False)
        full = tokenizer.encode("a")
        n_before = next((n for n in range(len(full)) if full[n : n + len(bare)] == bare), 0)
        self.start_ids: tuple[int, ...] = tuple(full[:n_before])
        self._start_text = str(tokenizer.decode(list(self.start_ids))) if self.start_ids else ""

    def encode(self, text: str) -> list[int]:
        return [int(token_id) for token_id in self._tokenizer.encode(text, add_special_tokens=False)]

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def render(self, messages: Sequence[Message]) -> str:
        given = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template raises what it likes: jinja2's errors, and Python's own
            raise ValueError(one_line(error)) from error
        return str(text).removeprefix(self._start_text)
