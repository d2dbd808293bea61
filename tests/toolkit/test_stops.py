from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.stops import StopFilter

texts = st.text("abc", max_size=30)


def before_first_stop(text: str, stops: list[str]) -> str:
    """Slow and obvious: the text before the stop string that begins first."""
    return min((text.partition(stop)[0] for stop in stops), key=len, default=text)


def filtered(pieces: list[str], stops: list[str]) -> str:
    """What a reader sees of the pieces."""
    stop_filter, shown = StopFilter(stops), ""
    for piece in pieces:
        shown += stop_filter.feed(piece)
        if stop_filter.has_stopped:
            return shown
    return shown + stop_filter.flush()


@settings(max_examples=1000, deadline=None)
@given(pieces=st.lists(texts, max_size=8), stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_pieces_are_cut_where_the_whole_text_would_be(pieces: list[str], stops: list[str]) -> None:
    assert filtered(pieces, stops) == before_first_stop("".join(pieces), stops)


def filtered_piece_by_piece(pieces: list[str], stops: list[str]) -> str:
    """Must fail: looks for stop strings inside single pieces only."""
    shown = ""
    for piece in pieces:
        cut = before_first_stop(piece, stops)
        shown += cut
        if cut != piece:
            break
    return shown


def test_the_check_sees_a_filter_that_forgets_the_last_piece() -> None:
    assert filtered_piece_by_piece(["EN", "D"], ["END"]) != before_first_stop("END", ["END"])
    assert filtered(["EN", "D"], ["END"]) == ""


@given(pieces=st.lists(texts, max_size=8))
def test_without_stop_strings_nothing_is_held_back(pieces: list[str]) -> None:
    stop_filter = StopFilter([])
    assert [stop_filter.feed(piece) for piece in pieces] == pieces


@pytest.mark.parametrize(("piece", "shown"), [("ab", "ab"), ("a<", "a"), ("a<e", "a"), ("a<x", "a<x"), ("a<<", "a<")])
def test_only_a_possible_beginning_is_held_back(piece: str, shown: str) -> None:
    assert StopFilter(["<end>"]).feed(piece) == shown


def test_a_longer_stop_that_began_earlier_wins_when_it_completes() -> None:
    assert filtered(["xabc", "d"], ["abcd", "bc"]) == "x"
    assert filtered(["xabc", "e"], ["abcd", "bc"]) == "xa"
