from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobile_app.transcript import join_segments, read_transcript
from toolkit.errors import FormatError, UsageError

SEGMENT = {"start_s": 0.0, "end_s": 2.0, "text": "The pump leaks."}


def written(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "transcript.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def test_what_transcribe_prints_is_read(tmp_path: Path) -> None:
    found = read_transcript(written(tmp_path, {"text": "x", "language": None, "duration_s": 9.5, "segments": [SEGMENT, SEGMENT]}))
    assert (found.text, found.language, found.duration_s) == ("The pump leaks. The pump leaks.", "en", 9.5)
    assert found.times(4, 8) == (0.0, 2.0)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 3, (0.0, 1.0)),
        (0, 4, (0.0, 1.0)),
        (4, 6, (2.0, 3.0)),
        (2, 5, (0.0, 3.0)),
        (0, 11, (0.0, 5.0)),
        (3, 4, (None, None)),
        (8, 11, (4.0, 5.0)),
    ],
)
def test_times_are_those_of_the_segments_that_are_touched(start: int, end: int, expected: tuple[float | None, float | None]) -> None:
    spoken = join_segments([("aaa", 0.0, 1.0), ("bbb", 2.0, 3.0), ("ccc", 4.0, 5.0)])
    assert spoken.text == "aaa bbb ccc"
    assert spoken.times(start, end) == expected


def test_our_own_transcript_file_is_read_again_as_it_was(tmp_path: Path) -> None:
    spoken = join_segments([("The pump leaks.", 0.0, 2.0), ("Ask Dave.", 2.5, 4.0)], duration_s=4.0)
    assert read_transcript(written(tmp_path, spoken.as_json())) == spoken


def test_a_plain_text_has_no_times(tmp_path: Path) -> None:
    (tmp_path / "said.txt").write_text("ポンプから油漏れ。\n弁を交換してください。\n", "utf-8")
    found = read_transcript(tmp_path / "said.txt")
    assert (found.text, found.language) == ("ポンプから油漏れ。弁を交換してください。", "ja")
    assert found.times(0, 3) == (None, None)


def test_a_text_that_begins_with_a_bracket_is_speech(tmp_path: Path) -> None:
    (tmp_path / "said.txt").write_text("[music] The pump leaks.")
    assert read_transcript(tmp_path / "said.txt").text == "[music] The pump leaks."


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[1]",
        "The pump leaks.",
        {"segments": 3},
        {"segments": [3]},
        {"segments": [{"text": 3}]},
        {"segments": [{**SEGMENT, "start_s": -1}]},
        {"segments": [{**SEGMENT, "start_s": "soon"}]},
        {"segments": [{**SEGMENT, "start_s": True}]},
        {"segments": [{**SEGMENT, "end_s": -0.5}]},
        {"segments": [{**SEGMENT, "start_s": 3.0}]},
        '{"segments": [{"text": "a", "start_s": NaN}]}',
        '{"segments": [{"text": "a", "start_s": 1e999}]}',
        '{"segments": [{"text": "a", "start_s": 1' + "0" * 400 + "}]}",
        '{"segments": ' + "[" * 500 + "]" * 500 + "}",
    ],
)
def test_a_damaged_transcript_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(FormatError, match="is no transcript"):
        read_transcript(written(tmp_path, content))


def test_a_missing_file_and_one_in_another_encoding_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no transcript"):
        read_transcript(tmp_path / "none.json")
    with pytest.raises(UsageError, match="it is a folder"):
        read_transcript(tmp_path)
    (tmp_path / "wrong.txt").write_bytes(b"caf\xe9 is closed")
    with pytest.raises(FormatError) as raised:
        read_transcript(tmp_path / "wrong.txt")
    assert "byte 3" in raised.value.why


@given(st.lists(st.text(st.characters(), max_size=40), max_size=6))
def test_whatever_was_said_can_be_written_as_utf_8_and_spans_fit(parts: list[str]) -> None:
    spoken = join_segments([(part, 0.0, 1.0) for part in parts])
    assert spoken.text.encode("utf-8").decode("utf-8") == spoken.text
    assert "\n" not in spoken.text
    for segment in spoken.segments:
        assert spoken.text[segment.start : segment.end].strip()


def test_half_a_surrogate_pair_does_not_reach_the_text(tmp_path: Path) -> None:
    found = read_transcript(written(tmp_path, '{"segments": [{"text": "a\\ud800b", "start_s": 0, "end_s": 1}]}'))
    assert found.text == "a b"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("\x1b[31mleaks\x1b[0m badly", "leaks badly"),
        ("\x9b1;31mleaks\x9bm", "leaks"),
        ("\x1b]0;5 bar\x07leaks \x1b]8;;x\x1b\\badly", "leaks badly"),
        ("\x1b]0; it leaks", "]0; it leaks"),  # no end: nothing that may have been said is dropped
        ("valve \u202e321\u202c \u2066a\u2067b\u2068c\u2069", "valve 321 abc"),
        ("\u202aa\u202bb\u202d c", "ab c"),
        ("\u202e", ""),
    ],
)
def test_what_steers_a_display_is_no_speech(said: str, expected: str) -> None:
    assert join_segments([(said, 0.0, 1.0)]).text == expected
