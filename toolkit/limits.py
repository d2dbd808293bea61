"""Refuses requests that an engine would accept silently and answer with nonsense, before it sees them."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterable
from typing import NoReturn

from toolkit.backends.base import Message, Sampling
from toolkit.errors import UsageError

ROLES = ("system", "user", "assistant")
MAX_SEED = 2**31 - 1
MAX_TOKENS = 2**27
MAX_VOCAB_SIZE = 2**20
MAX_BYTES_PER_TOKEN = 1024


def usable_threads() -> int:
    """CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_threads(threads: int, *, most: int | None = None, where: str = "this machine") -> None:
    """Raises UsageError unless 1 <= threads <= `most`, the CPUs of `where`: more than that is many times slower, not faster."""
    most = most or os.cpu_count() or 1
    if not 1 <= threads <= most:
        raise UsageError(f"{threads} threads cannot be used", why=f"{where} has {most} CPUs", fix=f"use --threads 1 to {most}")


def check_expected_tokens(expected_tokens: int, *, most: int | None = None) -> None:
    """Raises UsageError unless a job has at least one token, and no more than `most`, where a context is to hold all of it."""
    if expected_tokens < 1:
        raise UsageError(f"a job of {expected_tokens} tokens is no job", why="prompt and answer have 1 or more", fix="use --tokens 512")
    if most is not None and expected_tokens > most:
        raise UsageError(
            f"a job of {expected_tokens} tokens does not fit",
            why=f"the context holds {most}",
            fix=f"use --tokens {most} or less, or a larger --context, as far as the bundle was converted for",
        )


def check_context_length(context_length: int, *, most: int) -> None:
    """Raises UsageError unless 1 <= context_length <= what the bundle was converted for."""
    if not 1 <= context_length <= most:
        raise UsageError(
            f"a context of {context_length} tokens cannot be used",
            why=f"this bundle holds 1 to {most} tokens",
            fix=f"use --context {most} or less, or convert the model again with a larger --context",
        )


def check_max_tokens(max_tokens: int) -> None:
    """Raises UsageError unless at least one token may be generated."""
    if not 1 <= max_tokens <= MAX_TOKENS:
        raise UsageError(f"max_tokens is {max_tokens}", why=f"it must be 1 to {MAX_TOKENS}", fix="use --max-tokens 256")


def check_sampling(sampling: Sampling, *, vocab_size: int | None = None) -> None:
    """Raises UsageError for a temperature, top_k, top_p or seed outside its range.

    `vocab_size` is None while it is not known. LiteRT-LM aborts the process when top_k is larger.
    """
    if not (math.isfinite(sampling.temperature) and 0 <= sampling.temperature <= 100):
        _refuse("temperature", sampling.temperature, "must be 0 to 100; 0 takes the likeliest token", "use --temperature 0.7")
    most = vocab_size or MAX_VOCAB_SIZE
    if not 1 <= sampling.top_k <= most:
        _refuse("top_k", sampling.top_k, f"must be 1 to {most}, the size of the vocabulary", f"use --top-k {min(40, most)}")
    if not 0 < sampling.top_p <= 1:
        _refuse("top_p", sampling.top_p, "must be more than 0 and at most 1", "use --top-p 0.95")
    if not 0 <= sampling.seed <= MAX_SEED:
        _refuse("seed", sampling.seed, f"must be 0 to {MAX_SEED}", "use --seed 1")


def drawn_seed(seed: int | None) -> int:
    """The seed itself, or one drawn by the system when it is None."""
    return random.SystemRandom().randrange(MAX_SEED) if seed is None else seed


def _refuse(name: str, value: float, rule: str, fix: str) -> NoReturn:
    raise UsageError(f"{name} is {value}", why=f"it {rule}", fix=fix)


def check_stops(stop: Iterable[str]) -> tuple[str, ...]:
    """Returns the stop strings as a tuple; raises UsageError for one that would stop everything."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if any(not text for text in stops):
        raise UsageError("a stop string is empty", why="it would end every answer at once", fix="leave it out")
    return stops


def check_text(text: str, *, what: str, context_length: int) -> None:
    """Raises UsageError for text no tokenizer can take: half characters, NUL, or far more bytes than the context holds tokens."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is not text", why=f"character {error.start} is no Unicode character", fix="pass it as UTF-8") from error
    if "\0" in text:
        raise UsageError(f"{what} holds a NUL character", why=f"at character {text.index(chr(0))}", fix="remove it; is it a binary file?")
    if size > context_length * MAX_BYTES_PER_TOKEN:
        why = f"it has {size} bytes; the context holds {context_length} tokens"
        raise UsageError(f"{what} is too long", why=why, fix="shorten it, or send it in parts")


def check_messages(messages: Iterable[Message], *, context_length: int) -> tuple[Message, ...]:
    """Returns the messages as a tuple; raises UsageError for an unknown role, a late system message, or text as above."""
    checked = tuple(messages)
    for index, message in enumerate(checked):
        if message.role not in ROLES:
            raise UsageError(
                f"message {index} has the role {message.role!r}", why=f"known roles are {', '.join(ROLES)}", fix="use one of these"
            )
        if message.role == "system" and index > 0:
            raise UsageError(f"message {index} is a system message", why="only the first may be one", fix="put it first")
        check_text(message.content, what=f"message {index}", context_length=context_length)
    return checked
