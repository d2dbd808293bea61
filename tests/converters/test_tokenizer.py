from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from converters import runtime_probe
from converters import tokenizer as module
from converters.checkpoint import TokenizerFiles
from converters.corpus import windows
from converters.litertlm import PackagedTokenizer
from converters.panics import panics_explained
from converters.runtime_probe import RuntimeAnswers, encode_in_runtime
from converters.sentencepiece_model import Vocabulary, build_sentencepiece
from converters.tokenizer import choose_tokenizer, prove_equal, prove_in_runtime, reference_encodings, special_tokens, token_texts
from converters.tokenizer_texts import proof_texts
from tests.converters.small_tokenizer import small_pieces, small_tokenizer_json
from toolkit.errors import FidelityError, FormatError

SMALL = TokenizerFiles("sentencepiece", small_tokenizer_json(cuts_runs=True), small_pieces(), add_bos=True)
TURNED = [piece._replace(score=-piece.score - 2000.0) if piece.type == 1 else piece for piece in small_pieces()]


def byte_level_json() -> bytes:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|im_start|>", "<|im_end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["the quick brown fox and the lazy dog"] * 3, trainer)
    data: str = tokenizer.to_str()
    return data.encode()


def costly_json() -> bytes:
    """A tokenizer whose pattern takes more steps than the library allows."""
    data = json.loads(byte_level_json())
    costly = {"type": "Split", "pattern": {"Regex": "(a+)+$|(.*.*)*x"}, "behavior": "Isolated", "invert": False}
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [costly, data["pre_tokenizer"]]}
    return json.dumps(data).encode()


def test_a_sentencepiece_model_is_chosen_when_every_text_is_equal() -> None:
    chosen = choose_tokenizer(SMALL)
    assert chosen.kind == "sentencepiece"
    assert chosen.verified_texts > 380
    assert chosen.as_manifest() == {"kind": "sentencepiece", "verified_texts": chosen.verified_texts, "reason": chosen.reason}


@pytest.mark.parametrize("cuts_runs", [False, True])
def test_both_ways_of_runs_of_spaces_find_their_model(cuts_runs: bool) -> None:
    data = small_tokenizer_json(cuts_runs=cuts_runs)
    chosen = choose_tokenizer(replace(SMALL, tokenizer_json=data))
    assert chosen.kind == "sentencepiece"
    assert prove_equal(chosen.data, data) == []
    assert prove_equal(chosen.data, small_tokenizer_json(cuts_runs=not cuts_runs)), "the other way must differ"


def test_scores_that_are_wrong_give_way_to_those_derived_from_merges() -> None:
    assert prove_equal(build_sentencepiece(Vocabulary(TURNED)), small_tokenizer_json(cuts_runs=True)), "the mutant must differ"
    chosen = choose_tokenizer(replace(SMALL, pieces=TURNED))
    assert chosen.kind == "sentencepiece"
    assert prove_equal(chosen.data, small_tokenizer_json(cuts_runs=True)) == []


def test_one_different_text_is_enough_to_fall_back_to_tokenizer_json() -> None:
    files = replace(SMALL, tokenizer_json=small_tokenizer_json(normalize=True))
    chosen = choose_tokenizer(files)
    assert chosen.kind == "huggingface"
    assert chosen.data == files.tokenizer_json
    assert "differs on" in chosen.reason and "expected" in chosen.reason


def test_a_byte_level_tokenizer_is_packed_as_it_is_and_still_proven() -> None:
    files = TokenizerFiles("bpe-byte-level", byte_level_json(), None, add_bos=False)
    chosen = choose_tokenizer(files)
    assert (chosen.kind, chosen.data) == ("huggingface", files.tokenizer_json)
    assert chosen.verified_texts > 300


def test_a_model_whose_runtime_disagrees_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_id_off(packaged: PackagedTokenizer, texts: Sequence[str], vocab_size: int) -> RuntimeAnswers:
        answers = encode_in_runtime(packaged, texts, vocab_size)
        ids = list(answers.token_ids)
        ids[3] = (*ids[3][:-1], ids[3][-1] + 1)
        return replace(answers, token_ids=tuple(ids))

    monkeypatch.setattr(module, "encode_in_runtime", one_id_off)
    with pytest.raises(FidelityError, match="does not work in the LiteRT-LM runtime") as caught:
        choose_tokenizer(SMALL)
    assert "1 of" in caught.value.why


def test_the_runtime_reads_a_packed_model_as_the_library_does() -> None:
    packaged = PackagedTokenizer("sentencepiece", build_sentencepiece(Vocabulary(small_pieces())), 0, "")
    texts = ["<bos>雨が\n\n\n<start_of_turn>  降る😀", "x" + " " * 35]
    assert prove_in_runtime(packaged, small_tokenizer_json(cuts_runs=True), texts) == []
    turned = PackagedTokenizer("sentencepiece", build_sentencepiece(Vocabulary(TURNED)), 0, "")
    assert [difference.text for difference in prove_in_runtime(turned, small_tokenizer_json(), ["the weather"])] == ["the weather"]


def test_text_that_comes_back_changed_is_a_difference_even_with_equal_ids() -> None:
    data = json.loads(small_tokenizer_json())
    data["decoder"]["decoders"].insert(0, {"type": "Replace", "pattern": {"String": "a"}, "content": "b"})
    differences = prove_equal(build_sentencepiece(Vocabulary(small_pieces())), json.dumps(data).encode(), ["a", "c"])
    assert [(difference.text, difference.expected, difference.got) for difference in differences] == [("a", "b", "a")]


def test_a_checkpoint_without_tokenizer_json_is_refused() -> None:
    with pytest.raises(FormatError, match="has no tokenizer"):
        choose_tokenizer(replace(SMALL, tokenizer_json=None))


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xfe", small_tokenizer_json()[:-100]])
def test_a_damaged_tokenizer_json_is_refused_with_a_cause(data: bytes) -> None:
    with pytest.raises(FormatError, match="tokenizer.json cannot be read") as caught:
        choose_tokenizer(replace(SMALL, tokenizer_json=data))
    assert caught.value.why


def test_special_tokens_are_read_from_both_spellings_of_the_config() -> None:
    config = {"bos_token": "<bos>", "eos_token": {"content": "<eos>", "lstrip": False}, "pad_token": None, "tokenizer_class": "X"}
    assert special_tokens(replace(SMALL, config=config)) == {"bos_token": "<bos>", "eos_token": "<eos>"}


def test_token_texts_are_those_of_the_tokenizer_and_an_unknown_id_is_refused() -> None:
    assert token_texts(SMALL, [2, 5, 0]) == ["<bos>", "<end_of_turn>", "<pad>"]
    with pytest.raises(FormatError, match="names no text"):
        token_texts(SMALL, [2, 10**6])
    with pytest.raises(FormatError, match="names no text"):
        token_texts(replace(SMALL, tokenizer_json=b"[]"), [2])


def test_the_proof_covers_what_the_promise_names() -> None:
    texts = "\0".join(proof_texts(["<start_of_turn>"], ["pi"]))
    for part in (
        "行いました",
        "the spring of hope",
        "注文はずいぶん多い",
        "😀",
        "return f'",
        " " * 40,
        "\n\n\n",
        "\t\t",
        "<start_of_turn>",
        "\U00010348",
        "e\u0301",
    ):
        assert part in texts
    assert proof_texts(["<s>"], ["a"]) == proof_texts(["<s>"], ["a"]), "the same texts on every run"


@pytest.mark.real
def test_gemmas_tokenizer_becomes_a_sentencepiece_model(gemma_gguf: Path, own_folders: Path) -> None:
    from converters.read import read_checkpoint

    files = read_checkpoint(gemma_gguf, accept_license="gemma").tokenizer
    chosen = choose_tokenizer(files)
    assert chosen.kind == "sentencepiece"
    assert len(chosen.data) < 6 * 2**20
    assert files.tokenizer_json is not None and len(chosen.data) < len(files.tokenizer_json) / 2


PACKED = PackagedTokenizer("huggingface", byte_level_json(), 1, "probe")
WAYS_TO_ENCODE: dict[str, Callable[[bytes], object]] = {
    "choose": lambda data: choose_tokenizer(TokenizerFiles("bpe-byte-level", data, None, add_bos=False)),
    "prove a model": lambda data: prove_equal(build_sentencepiece(Vocabulary(small_pieces())), data),
    "prove in the runtime": lambda data: prove_in_runtime(PACKED, data, proof_texts([], [])),
    "answer for other targets": reference_encodings,
}


@pytest.mark.parametrize("way", WAYS_TO_ENCODE)
def test_a_pattern_the_library_cannot_match_in_bounded_steps_is_the_files_error(way: str) -> None:
    with pytest.raises(FormatError, match="tokenizer.json cannot be used") as caught:
        WAYS_TO_ENCODE[way](costly_json())
    assert "gives up" in caught.value.why and "\n" not in caught.value.why


def test_the_texts_of_a_conversion_are_not_cut_by_such_a_pattern_either(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(costly_json())
    with pytest.raises(FormatError, match="tokenizer.json cannot be used"):
        windows(tmp_path)


def test_other_errors_than_panics_pass_unchanged() -> None:
    with pytest.raises(KeyboardInterrupt), panics_explained():
        raise KeyboardInterrupt


def test_a_tokenizer_the_runtime_dies_of_is_the_files_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_probe, "TOKENIZER_CPU_S", 0.0)
    packaged = PackagedTokenizer("huggingface", byte_level_json(), 1, "probe")
    with pytest.raises(FormatError, match="tokenizer.json cannot be used") as caught:
        encode_in_runtime(packaged, ["the quick brown fox " * 20_000] * 5, 300)
    assert "SIGXCPU" in caught.value.why
