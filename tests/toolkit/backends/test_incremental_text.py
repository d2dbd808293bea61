from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.backends.incremental_text import IncrementalText


def of_bytes(token_ids: Sequence[int]) -> str:
    """A tokenizer whose tokens are bytes: every character beyond ASCII is cut."""
    return bytes(token_ids).decode("utf-8", errors="replace")


def in_words(token_ids: Sequence[int]) -> str:
    """A tokenizer that drops the space at the start of what it decodes, as SentencePiece's decoder does."""
    return "".join(f" word{token_id}" for token_id in token_ids).removeprefix(" ")


def pieces(text: IncrementalText, token_ids: Sequence[int]) -> list[str]:
    return [*(text.add(token_id) for token_id in token_ids), text.flush()]


@given(st.text())
def test_pieces_put_together_are_the_text(text: str) -> None:
    assert "".join(pieces(IncrementalText(of_bytes), text.encode())) == text


@given(st.binary())
def test_bytes_that_are_no_text_are_replaced_and_never_lost(data: bytes) -> None:
    shown = "".join(pieces(IncrementalText(of_bytes), data))
    kept = [char for char in shown if char.isascii()]
    assert kept == [chr(byte) for byte in data if byte < 128]


def test_a_character_is_shown_once_it_is_whole() -> None:
    assert pieces(IncrementalText(of_bytes), "a！b".encode()) == ["a", "", "", "！", "b", ""]


def test_a_character_that_is_never_finished_is_replaced_at_the_end() -> None:
    assert "".join(pieces(IncrementalText(of_bytes), b"a\xe3\x81")) == "a\ufffd"


def test_bytes_that_stay_unfinished_do_not_hold_the_text_up_for_ever() -> None:
    shown = [IncrementalText(of_bytes)]
    assert "".join(shown[0].add(0xE3) for _ in range(20)) != ""


def test_a_space_between_prompt_and_answer_is_kept() -> None:
    assert pieces(IncrementalText(in_words, before=[1, 2]), [3, 4]) == [" word3", " word4", ""]
    assert pieces(IncrementalText(in_words), [3, 4]) == ["word3", " word4", ""]


class Hoarding(IncrementalText):
    """Must-fail twin: decodes the whole answer at every step."""

    def _forget(self) -> None:
        self._shown = len(self._ids)


@pytest.mark.parametrize(("kind", "is_bounded"), [(IncrementalText, True), (Hoarding, False)])
def test_a_step_decodes_no_more_tokens_late_in_an_answer_than_early(kind: type[IncrementalText], is_bounded: bool) -> None:
    lengths = []

    def decode(token_ids: Sequence[int]) -> str:
        lengths.append(len(token_ids))
        return of_bytes(token_ids)

    assert "".join(pieces(kind(decode), b"x" * 100)) == "x" * 100
    assert (max(lengths) <= 4) is is_bounded
