"""The tokenizer rebuilt from GGUF metadata against the libraries that own each kind: tokenizers, transformers, SentencePiece."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from converters.read.gguf_tokenizer import tokenizer_from_gguf
from converters.read.piece_merges import SPACE
from toolkit.errors import FormatError, UnsupportedModelError

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog doesn't mind; it's 12345 days old, isn't it?",
    "def f(x):\n\treturn x ** 2  # two  spaces\n\n\nclass A:\n    pass\n",
    "東京は日本の首都です。私はペンを持っています。吾輩は猫である。名前はまだ無い。",
    "Ünïcödé naïve café ½ ٣ ﬁ Å e\u0301 — “quotes” … 100% @user #tag",
] * 20
TEXTS = [
    "Hello world",
    " leading, trailing ",
    "  two   three    four     ",
    "I'LL DON'T we're they'd",
    "12345 1 22 333 4444",
    "日本語のテスト、これはペンです。",
    "😀👩‍👩‍👧‍👦🇯🇵 emoji",
    "a\n\n\nb\r\n\tc \n d",
    "½ ٣ ﬁ Å e\u0301",
    "\x00\x01\x7f \ufffd \u200b",
    "",
    " ",
    "<|im_start|>user\nHi<|im_end|>",
    "x" * 300,
]
USER_DEFINED = [SPACE * 2, SPACE * 3, SPACE * 4, "\n\n", "<start_of_turn>"]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def transformers_reference(kind: str) -> Tokenizer:
    """The tokenizer that owns a rule, from transformers, trained on a small corpus: vocabulary, merges and splitting."""
    if kind == "qwen2":
        from transformers import Qwen2Tokenizer

        backend = Qwen2Tokenizer()._tokenizer
    elif kind == "llama-bpe":
        from transformers.convert_slow_tokenizer import TikTokenConverter

        backend = Tokenizer(models.BPE())
        split = pre_tokenizers.Split(_regex(TikTokenConverter(vocab_file="none").pattern), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        backend = Tokenizer(models.BPE())
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level]) if kind == "smollm" else byte_level
    # Bytes in their own order first, as in every published byte-level vocabulary.
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=CONTROL)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def _regex(pattern: str) -> Any:
    from tokenizers import Regex

    return Regex(pattern)


def metadata_of(backend: Tokenizer, kind: str) -> dict[str, Any]:
    import json

    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3 if token in CONTROL else 1 for token in tokens], np.int32),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


@pytest.mark.parametrize("kind", ["qwen2", "llama-bpe", "smollm", "gpt-2"])
def test_byte_level_ids_are_those_of_the_library_that_owns_the_rule(kind: str) -> None:
    reference = transformers_reference(kind)
    files = tokenizer_from_gguf(metadata_of(reference, kind), "tiny.gguf", 1000)
    assert files.kind == "bpe-byte-level" and files.pieces is None and files.tokenizer_json is not None
    ours = Tokenizer.from_str(files.tokenizer_json.decode())
    for text in TEXTS + CORPUS[:4]:
        assert ours.encode(text).ids == reference.encode(text).ids, text
        assert ours.decode(ours.encode(text).ids) == reference.decode(reference.encode(text).ids)


@pytest.mark.parametrize(("kind", "wrong"), [("qwen2", "gpt-2"), ("llama-bpe", "qwen2"), ("smollm", "gpt-2"), ("gpt-2", "qwen2")])
def test_another_rule_gives_other_ids_on_these_texts(kind: str, wrong: str) -> None:
    """The twin: the texts above do tell the rules apart."""
    reference = transformers_reference(kind)
    files = tokenizer_from_gguf(metadata_of(reference, wrong), "tiny.gguf", 1000)
    ours = Tokenizer.from_str((files.tokenizer_json or b"").decode())
    pieces = [[a.encode(text).tokens for text in TEXTS + CORPUS[:4]] for a in (ours, reference)]
    splits = [[a.pre_tokenizer.pre_tokenize_str(text) for text in TEXTS + CORPUS[:4]] for a in (ours, reference)]
    assert pieces[0] != pieces[1] or splits[0] != splits[1]


def test_a_control_token_is_one_id_and_a_user_defined_one_is_not_special() -> None:
    metadata = metadata_of(transformers_reference("smollm"), "smollm")
    ours = Tokenizer.from_str((tokenizer_from_gguf(metadata, "tiny.gguf", 1000).tokenizer_json or b"").decode())
    assert ours.encode("<|im_start|>").ids == [1]
    assert ours.encode("a<|im_end|>b").ids == [*ours.encode("a").ids, 2, *ours.encode("b").ids]
    assert ours.decode([1, 2]) == ""
    plain = metadata | {"tokenizer.ggml.token_type": np.ones(len(metadata["tokenizer.ggml.tokens"]), np.int32)}
    without = Tokenizer.from_str((tokenizer_from_gguf(plain, "tiny.gguf", 1000).tokenizer_json or b"").decode())
    assert without.encode("<|im_start|>").ids != [1]


@pytest.mark.parametrize("stated", [True, False])
def test_bos_is_added_exactly_if_the_file_says_so(stated: bool) -> None:
    metadata = metadata_of(transformers_reference("gpt-2"), "gpt-2") | {"tokenizer.ggml.add_bos_token": stated}
    files = tokenizer_from_gguf(metadata, "tiny.gguf", 1000)
    ids = Tokenizer.from_str((files.tokenizer_json or b"").decode()).encode("Hi").ids
    assert files.add_bos is stated
    assert (ids[0] == 1) is stated


@pytest.mark.parametrize(("kind", "adds"), [("llama-bpe", True), ("gpt-2", False), ("qwen2", False), ("smollm", False)])
def test_without_a_word_from_the_file_only_llama_3_begins_with_bos(kind: str, adds: bool) -> None:
    metadata = metadata_of(transformers_reference("gpt-2"), kind)
    del metadata["tokenizer.ggml.add_bos_token"]
    assert tokenizer_from_gguf(metadata, "tiny.gguf", 1000).add_bos is adds
    assert tokenizer_from_gguf(metadata | {"tokenizer.ggml.add_bos_token": not adds}, "tiny.gguf", 1000).add_bos is not adds


def sentencepiece_reference(*, has_prefix: bool) -> Any:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        vocab_size=600,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=0.98,
        add_dummy_prefix=has_prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        split_digits=True,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=USER_DEFINED,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def spm_metadata(reference: Any, *, has_prefix: bool) -> dict[str, Any]:
    """As convert_hf_to_gguf.py writes it: user-defined pieces get plain spaces back, others keep U+2581."""
    texts, types = [], []
    for i in range(reference.get_piece_size()):
        text = reference.id_to_piece(i)
        flags = (reference.is_unknown(i), reference.is_control(i), reference.is_byte(i), text in USER_DEFINED)
        types.append(dict(zip(flags, (2, 3, 6, 4), strict=True)).get(True, 1))
        texts.append(text.replace(SPACE, " ") if text in USER_DEFINED else text)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": np.array([reference.get_score(i) for i in range(len(texts))], np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_space_prefix": has_prefix,
        "tokenizer.ggml.add_bos_token": False,
    }


@pytest.mark.parametrize("has_prefix", [False, True])
def test_sentencepiece_ids_are_those_of_sentencepiece(has_prefix: bool) -> None:
    reference = sentencepiece_reference(has_prefix=has_prefix)
    files = tokenizer_from_gguf(spm_metadata(reference, has_prefix=has_prefix), "tiny.gguf", 1000)
    assert (files.kind, files.added_space_prefix, files.add_bos) == ("sentencepiece", has_prefix, False)
    ours = Tokenizer.from_str((files.tokenizer_json or b"").decode())
    # SentencePiece drops NUL, puts its prefix before an empty text, and splits added tokens off after it: left out.
    texts = [text for text in TEXTS + CORPUS[:4] if text and "\x00" not in text and not (has_prefix and "\n\n" in text)]
    assert len(texts) > 12
    for text in texts:
        assert ours.encode(text).ids == reference.encode(text), text
        assert ours.decode(ours.encode(text).ids) == text.removeprefix(" " if has_prefix and text.startswith("  ") else "") or has_prefix


def test_scores_decide_the_merges() -> None:
    """The twin: with scores reversed, the same vocabulary gives other ids."""
    reference = sentencepiece_reference(has_prefix=False)
    metadata = spm_metadata(reference, has_prefix=False)
    metadata["tokenizer.ggml.scores"] = -metadata["tokenizer.ggml.scores"]
    ours = Tokenizer.from_str((tokenizer_from_gguf(metadata, "tiny.gguf", 1000).tokenizer_json or b"").decode())
    assert [ours.encode(text).ids for text in CORPUS[:4]] != [reference.encode(text) for text in CORPUS[:4]]


def test_pieces_keep_the_files_texts_scores_and_types_in_order() -> None:
    reference = sentencepiece_reference(has_prefix=False)
    metadata = spm_metadata(reference, has_prefix=False)
    pieces = tokenizer_from_gguf(metadata, "tiny.gguf", 1000).pieces
    assert pieces is not None
    assert [piece.text for piece in pieces] == metadata["tokenizer.ggml.tokens"]
    assert [piece.type for piece in pieces] == metadata["tokenizer.ggml.token_type"].tolist()
    np.testing.assert_array_equal([piece.score for piece in pieces], metadata["tokenizer.ggml.scores"])


def broken(**changes: Any) -> dict[str, Any]:
    vocabulary = ["<unk>", "a", "b", "ab"]
    good = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": vocabulary,
        "token_type": np.array([2, 1, 1, 1]),
        "scores": np.zeros(4, np.float32),
        "merges": ["a b"],
        "unknown_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (good | changes).items() if value is not None}


DAMAGE: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no tokens": (broken(tokens=None), FormatError, "tokens is missing or empty"),
    "empty tokens": (broken(tokens=[]), FormatError, "tokens is missing or empty"),
    "tokens that are numbers": (broken(tokens=np.zeros(4)), FormatError, "tokens is missing or empty"),
    "more tokens than embeddings": (broken(tokens=[str(i) for i in range(11)]), FormatError, "11 tokens, but only 10 rows"),
    "a token twice": (broken(tokens=["a", "b", "ab", "a"]), FormatError, "1 tokens appear twice"),
    "too few types": (broken(token_type=np.array([1, 1])), FormatError, "token_type does not have 4 numbers"),
    "types as text": (broken(token_type=["1"] * 4), FormatError, "token_type does not have 4 numbers"),
    "NaN scores": (broken(scores=np.array([0, np.nan, 0, 0])), FormatError, "NaN"),
    "no merges": (broken(merges=None), FormatError, "merges is missing"),
    "a merge of one": (broken(merges=["ab"]), FormatError, "the merge 'ab' does not join"),
    "a merge into nothing": (broken(merges=["b a"]), FormatError, "the merge 'b a' does not join"),
    "a bos past the end": (broken(bos_token_id=4), FormatError, "bos_token_id is 4, the vocabulary has 4"),
    "a negative eos": (broken(eos_token_id=-1), FormatError, "eos_token_id is -1"),
    "no scores": (broken(model="llama", scores=None), FormatError, "scores is missing"),
    "no unknown": (broken(model="llama", unknown_token_id=None), FormatError, "unknown_token_id is missing"),
    "two spellings of a space": (broken(model="llama", tokens=["<unk>", "a", " a", SPACE + "a"]), FormatError, "how a space is written"),
    "another model": (broken(model="bert"), UnsupportedModelError, "kind 'bert'"),
    "no model": (broken(model=None), UnsupportedModelError, "kind None"),
    "another rule": (broken(pre="tekken"), UnsupportedModelError, "rule 'tekken' is not supported"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_tokenizer_that_cannot_be_true_is_refused_with_its_reason(case: str) -> None:
    metadata, error, reason = DAMAGE[case]
    with pytest.raises(error, match=reason):
        tokenizer_from_gguf(metadata, "tiny.gguf", 10)


def test_the_good_one_of_these_is_read(tmp_path: Path) -> None:
    assert tokenizer_from_gguf(broken(), "tiny.gguf", 10).tokenizer_json
