from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toolkit.speech.whisper_rules import TOKENS, VOCAB_SIZE
from toolkit.errors import FormatError
from toolkit.speech.whisper_tokens import WhisperTokens


def test_tokens_survive_a_trip_through_json() -> None:
    assert WhisperTokens.from_dict(json.loads(json.dumps(TOKENS.as_dict())), vocab_size=VOCAB_SIZE) == TOKENS


def test_timestamps_are_seconds() -> None:
    assert [TOKENS.seconds(TOKENS.timestamp_begin + step) for step in (0, 50, 1500)] == [0.0, 1.0, 30.0]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an id past the vocabulary": ({"no_speech": VOCAB_SIZE}, "no_speech must be a token id"),
    "an id below zero": ({"translate": -1}, "translate must be a token id"),
    "a truth for an id": ({"translate": True}, "translate must be a token id"),
    "a text for a claim": ({"is_multilingual": "yes"}, "is_multilingual must be true or false"),
    "languages as a list": ({"languages": [42]}, "languages must map"),
    "no languages": ({"languages": {}}, "multilingual model without languages"),
    "a language outside": ({"languages": {"en": 5}}, "must lie between"),
    "a start among the texts": ({"start_of_transcript": 3}, "must lie between"),
    "timestamps that do not fit": ({"timestamp_begin": 60}, "do not fit"),
    "suppressed as a number": ({"suppressed": 5}, "suppressed must be a list"),
    "a suppressed text": ({"suppressed": ["a"]}, "suppressed must be a token id"),
    "an unknown field": ({"more": 1}, "exactly"),
}


@pytest.mark.parametrize("case", WRONG)
def test_tokens_that_make_no_sense_are_refused(case: str) -> None:
    changes, reason = WRONG[case]
    with pytest.raises(FormatError, match=reason):
        WhisperTokens.from_dict(TOKENS.as_dict() | changes, vocab_size=VOCAB_SIZE)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(key=st.sampled_from(sorted(TOKENS.as_dict())), value=JSON, is_whole=st.booleans())
def test_any_value_is_read_or_refused(key: str, value: Any, is_whole: bool) -> None:
    data = value if is_whole else TOKENS.as_dict() | {key: value}
    try:
        WhisperTokens.from_dict(data, vocab_size=VOCAB_SIZE)
    except FormatError as error:
        assert len(str(error).splitlines()) == 3
