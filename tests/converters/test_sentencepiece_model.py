from __future__ import annotations

import json
import random

import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from converters.checkpoint import Piece
from converters.sentencepiece_model import (
    PieceType,
    Vocabulary,
    build_sentencepiece,
    vocabulary_from_model,
    vocabulary_from_tokenizer_json,
)
from tests.converters.small_tokenizer import RUNS, all_texts, small_pieces, small_tokenizer_json
from toolkit.errors import FormatError

TEXTS = (
    "A hairline crack, 3.5 mm wide.",
    "羅生門の下で雨やみを待っていた。",
    "x" + " " * 40 + "y",
    "<start_of_turn>user\n😀<end_of_turn>\n\n",
    "<bos>a<eos>",
)


def ids_of(model: bytes, text: str) -> list[int]:
    encoded: list[int] = sentencepiece.SentencePieceProcessor(model_proto=model).encode(text)
    return encoded


def reference_ids(text: str, *, cuts_runs: bool = True) -> list[int]:
    reference = tokenizers.Tokenizer.from_str(small_tokenizer_json(cuts_runs=cuts_runs).decode())
    encoded: list[int] = reference.encode(text, add_special_tokens=False).ids
    return encoded


def edited(model: bytes, edit: dict[str, int]) -> bytes:
    """The model with the types of some pieces changed."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model)
    for piece in proto.pieces:
        piece.type = edit.get(piece.piece, piece.type)
    data: bytes = proto.SerializeToString()
    return data


@pytest.mark.parametrize("merges_runs", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_both_sources_of_a_vocabulary_encode_like_the_hugging_face_tokenizer(text: str, merges_runs: bool) -> None:
    derived = vocabulary_from_tokenizer_json(small_tokenizer_json(cuts_runs=not merges_runs))
    assert derived is not None
    for vocabulary in (Vocabulary(small_pieces()), derived):
        model = build_sentencepiece(vocabulary, merges_runs=merges_runs)
        assert ids_of(model, text) == reference_ids(text, cuts_runs=not merges_runs)


@pytest.mark.parametrize("merges_runs", [False, True])
def test_random_mixtures_encode_alike(merges_runs: bool) -> None:
    data = build_sentencepiece(Vocabulary(small_pieces()), merges_runs=merges_runs)
    model = sentencepiece.SentencePieceProcessor(model_proto=data)
    reference = tokenizers.Tokenizer.from_str(small_tokenizer_json(cuts_runs=not merges_runs).decode())
    rng = random.Random(5)
    atoms = [text.replace("\u2581", " ") for text in all_texts() if text != "<unk>"] + ["é", "\U0001f9ff", " ", "\t"]
    for _ in range(500):
        text = "".join(rng.choice(atoms) for _ in range(rng.randint(1, 15)))
        assert model.encode(text) == reference.encode(text, add_special_tokens=False).ids, text


def test_forty_spaces_tell_the_two_ways_of_runs_apart() -> None:
    whole, merged = (build_sentencepiece(Vocabulary(small_pieces()), merges_runs=merges_runs) for merges_runs in (False, True))
    assert ids_of(whole, TEXTS[2]) != ids_of(merged, TEXTS[2])
    assert RUNS[-1] in sentencepiece.SentencePieceProcessor(model_proto=whole).encode(TEXTS[2], out_type=str)


@pytest.mark.parametrize("token", ["<start_of_turn>", "<bos>", "<eos>"])
def test_control_pieces_left_control_would_not_be_seen_in_a_text(token: str) -> None:
    model = edited(build_sentencepiece(Vocabulary(small_pieces())), {token: PieceType.CONTROL})
    assert ids_of(model, f"a{token}b") != reference_ids(f"a{token}b")


def test_scores_in_another_order_encode_differently() -> None:
    pieces = small_pieces()
    turned = [piece._replace(score=-piece.score - 2000.0) if piece.type == 1 else piece for piece in pieces]
    assert ids_of(build_sentencepiece(Vocabulary(turned)), TEXTS[0]) != reference_ids(TEXTS[0])


def test_a_dummy_prefix_is_written_and_read_back() -> None:
    model = build_sentencepiece(Vocabulary(small_pieces(), add_dummy_prefix=True))
    assert ids_of(model, "a") == ids_of(build_sentencepiece(Vocabulary(small_pieces())), " a")
    read = vocabulary_from_model(model)
    assert read is not None and read.add_dummy_prefix and len(read.pieces) == len(small_pieces())


def test_a_metaspace_pretokenizer_means_a_dummy_prefix() -> None:
    data = json.loads(small_tokenizer_json())
    data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    read = vocabulary_from_tokenizer_json(json.dumps(data).encode())
    assert read is not None and read.add_dummy_prefix
    data["pre_tokenizer"]["prepend_scheme"] = "never"
    read = vocabulary_from_tokenizer_json(json.dumps(data).encode())
    assert read is not None and not read.add_dummy_prefix


def test_ids_without_a_token_become_unused_pieces() -> None:
    data = json.loads(small_tokenizer_json())
    data["added_tokens"].append({**data["added_tokens"][0], "content": "<late>", "id": len(all_texts()) + 2})
    read = vocabulary_from_tokenizer_json(json.dumps(data).encode())
    assert read is not None
    assert [piece.type for piece in read.pieces[-3:]] == [PieceType.UNUSED, PieceType.UNUSED, PieceType.USER_DEFINED]
    assert ids_of(build_sentencepiece(read), "<late>") == [len(all_texts()) + 2]


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([], "it has 0 pieces"),
        ([Piece("a", 0.0, 1)], "no single unknown piece"),
        ([Piece("<unk>", 0.0, 2), Piece("", 0.0, 1)], "token 1 '' is empty"),
        ([Piece("<unk>", 0.0, 2), Piece("a b", 0.0, 1), Piece("a\u2581b", 0.0, 1)], "token 2 'a▁b' is listed twice"),
    ],
)
def test_a_vocabulary_that_cannot_be_one_is_refused(pieces: list[Piece], why: str) -> None:
    with pytest.raises(FormatError, match="cannot be read as a tokenizer") as caught:
        build_sentencepiece(Vocabulary(pieces))
    assert why in caught.value.why


def test_other_kinds_of_tokenizer_are_no_vocabulary() -> None:
    data = json.loads(small_tokenizer_json())
    assert vocabulary_from_tokenizer_json(json.dumps({**data, "model": {**data["model"], "byte_fallback": False}}).encode()) is None
    assert vocabulary_from_tokenizer_json(json.dumps({**data, "decoder": {"type": "ByteLevel"}}).encode()) is None


KEYS = st.sampled_from(["model", "type", "vocab", "merges", "decoder", "added_tokens", "content", "id"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(model=JSON, added=JSON)
def test_no_tokenizer_json_raises_anything_but_a_format_error(model: object, added: object) -> None:
    whole = {"decoder": "\u2581", "added_tokens": added, "model": {"type": "BPE", "byte_fallback": True, "vocab": model, "merges": added}}
    for data in (whole, model):
        try:
            vocabulary_from_tokenizer_json(json.dumps(data).encode())
        except FormatError as error:
            assert error.fix


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_no_tokenizer_model_raises_anything_but_a_format_error(data: bytes) -> None:
    try:
        vocabulary_from_model(data)
    except FormatError as error:
        assert error.fix
