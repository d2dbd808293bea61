"""Answers held to a JSON schema: which tokens may come next, for engines that leave the choice to the caller.

llguidance compiles the schema and walks the tokenizer's vocabulary; what it forbids gets a logit of minus infinity, so that
whatever samples, samples from what is allowed. A stop token is allowed where the value is whole, and nothing else where it can
only end.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from toolkit.errors import BackendUnavailableError, EngineError, UsageError

_MOST_SHOWN = 300
# One way to write each value: with free whitespace a model that has lost its thread writes blanks until its tokens are used up.
# llama.cpp keeps to it too where it was built with llguidance.
FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def can_constrain() -> bool:
    """Whether llguidance is installed."""
    return find_spec("llguidance") is not None


def _import_library() -> Any:
    try:
        import llguidance
    except ImportError as error:  # missing, or its shared library does not load here
        raise BackendUnavailableError(
            "the answer cannot be held to a schema",
            why=f"the package llguidance is missing or does not load: {_one_line(str(error))}",
            fix="pip install llguidance, or pip install 'ondevice-toolkit[onnx]' ('[mlx]' likewise)",
        ) from error
    return llguidance


def _one_line(text: str) -> str:
    return " ".join(text.partition("<state>")[0].split())[:_MOST_SHOWN]


def check_schema(schema: str) -> None:
    """Refuse what no grammar can hold an answer to, where llguidance is here to tell.

    For llama.cpp: built with llguidance it answers such a schema as if there were none, and only its log says so.

    Raises:
        UsageError: The schema asks for it.
    """
    if can_constrain():
        library = _import_library()
        is_wrong, messages = library.LLMatcher.validate_grammar_with_warnings(_grammar(library, schema))
        if is_wrong:
            raise _refusal(" ".join(messages))


def _grammar(library: Any, schema: str) -> Any:
    return library.LLMatcher.grammar_from_json_schema(schema, overrides=FORM)


def _refusal(message: str) -> UsageError:
    return UsageError(
        "no answer can be held to this schema",
        why=_one_line(message),
        fix="leave that keyword out of the schema (docs/guides/structured.md)",
    )


class Grammars:
    """What an engine's tokenizer makes of schemas. Read on first use: 262,144 tokens take 3 s and 0.6 GiB for a moment."""

    def __init__(self, tokenizer_path: Path, stop_ids: Sequence[int]) -> None:
        """`tokenizer_path` is a tokenizer.json; `stop_ids` end an answer."""
        self._path, self._stop_ids = tokenizer_path, list(stop_ids)
        self._tokenizer: Any = None
        self._lock = threading.Lock()

    def begin(self, schema: str) -> Constraint:
        """The state at the beginning of an answer.

        Raises:
            UsageError: The schema asks for what no grammar can hold an answer to.
            BackendUnavailableError: llguidance is not here.
            EngineError: The tokenizer's file is missing, or of a kind that llguidance does not read.
        """
        library = _import_library()
        tokenizer = self._opened(library)
        matcher = library.LLMatcher(tokenizer, _grammar(library, schema), log_level=0)
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        return Constraint(matcher)

    def _opened(self, library: Any) -> Any:
        with self._lock:
            if self._tokenizer is None:
                try:
                    text = self._path.read_text(encoding="utf-8")
                    slices = library.LLTokenizer.json_slices()
                    self._tokenizer = library.LLTokenizer(text, eos_token=self._stop_ids, slices=slices)
                except (OSError, ValueError) as error:  # UnicodeDecodeError is a ValueError
                    raise EngineError(
                        "the answer cannot be held to a schema",
                        why=f"llguidance cannot read {self._path.name}: {_one_line(str(error))}",
                        fix="ask without a schema, or convert the model to gguf, whose engine needs no such file",
                    ) from error
            return self._tokenizer


class Constraint:
    """How far one answer has come. Used by one thread at a time."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def allowed(self, logits: Any) -> Any:
        """The logits, those of tokens that may not come next at minus infinity.

        Args:
            logits: (vocab_size,) float32; left as it is. The weights may have more tokens than the tokenizer, or fewer.

        Raises:
            ValueError: The grammar has become too large to follow, or leaves no token.
        """
        import numpy as np

        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        bits = np.unpackbits(mask, bitorder="little")[: len(logits)].astype(bool)
        self._check(bool(bits.any()))
        kept = np.full_like(logits, -np.inf)
        kept[: len(bits)][bits] = logits[: len(bits)][bits]
        return kept

    def take(self, token_id: int) -> None:
        """A token was chosen, and is no stop token.

        Raises:
            ValueError: It may not come here.
        """
        self._check(self._matcher.consume_token(token_id))

    def _check(self, is_right: bool) -> None:
        if not is_right or self._matcher.is_error():
            raise ValueError(f"the schema cannot be followed further: {_one_line(self._matcher.get_error()) or 'no token is allowed'}")
