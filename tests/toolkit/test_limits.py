from __future__ import annotations

import math
import os
from typing import Any

import pytest

from toolkit.backends.base import Message, Sampling
from toolkit.errors import UsageError
from toolkit.limits import (
    MAX_SEED,
    check_context_length,
    check_max_tokens,
    check_messages,
    check_sampling,
    check_stops,
    check_text,
    check_threads,
    drawn_seed,
    usable_threads,
)


@pytest.mark.parametrize("threads", [0, -3, 10_000])
def test_threads_a_machine_does_not_have_are_refused(threads: int) -> None:
    with pytest.raises(UsageError, match=str(threads)) as caught:
        check_threads(threads)
    assert str(os.cpu_count()) in caught.value.why


def test_threads_a_machine_has_are_allowed() -> None:
    for threads in (1, usable_threads(), os.cpu_count() or 1):
        check_threads(threads)


@pytest.mark.parametrize("context_length", [0, -1, 2049])
def test_a_context_the_bundle_does_not_hold_is_refused(context_length: int) -> None:
    with pytest.raises(UsageError, match=str(context_length)):
        check_context_length(context_length, most=2048)
    check_context_length(2048, most=2048)
    check_context_length(1, most=2048)


@pytest.mark.parametrize("max_tokens", [0, -1, 2**40])
def test_a_limit_of_no_tokens_is_refused(max_tokens: int) -> None:
    with pytest.raises(UsageError, match="max_tokens"):
        check_max_tokens(max_tokens)
    check_max_tokens(1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**31}, "seed"),
    ],
)
def test_sampling_out_of_range_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        check_sampling(Sampling(**changes))


def test_the_ends_of_each_range_are_allowed() -> None:
    check_sampling(Sampling(0.0, 1, 1.0, 0))
    check_sampling(Sampling(100.0, 2**20, 1e-9, MAX_SEED))


def test_top_k_may_not_exceed_a_known_vocabulary() -> None:
    check_sampling(Sampling(top_k=311), vocab_size=311)
    with pytest.raises(UsageError, match="top_k") as caught:
        check_sampling(Sampling(top_k=312), vocab_size=311)
    assert "311" in caught.value.why


def test_a_seed_is_kept_or_drawn() -> None:
    assert drawn_seed(7) == 7
    drawn = {drawn_seed(None) for _ in range(8)}
    assert len(drawn) > 1 and all(0 <= seed <= MAX_SEED for seed in drawn)


def test_a_single_stop_string_is_not_taken_apart() -> None:
    assert check_stops("END") == ("END",)
    assert check_stops(["a", "b"]) == ("a", "b")
    with pytest.raises(UsageError, match="empty"):
        check_stops(["a", ""])


@pytest.mark.parametrize("text", ["\ud800", "a\0b", "x" * 200_000])
def test_text_no_tokenizer_can_take_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the prompt"):
        check_text(text, what="the prompt", context_length=128)
    check_text("日本語 🙂\n\t", what="the prompt", context_length=128)


@pytest.mark.parametrize("messages", [[Message("alien", "x")], [Message("user", "x"), Message("system", "y")], [Message("user", "\ud800")]])
def test_messages_an_engine_would_accept_and_garble_are_refused(messages: list[Message]) -> None:
    with pytest.raises(UsageError, match="message"):
        check_messages(messages, context_length=128)


def test_messages_in_order_are_allowed() -> None:
    messages = (Message("system", "s"), Message("user", "u"), Message("assistant", "a"))
    assert check_messages(iter(messages), context_length=128) == messages
