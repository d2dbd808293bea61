"""Tokenizers and templates as onnxruntime-genai itself reads them: equal to the checkpoint's, or refused with the difference."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from converters.checkpoint import Checkpoint, TokenizerFiles
from converters.child import ChildDeathError, run_in_child
from converters.read import read_checkpoint
from converters.targets import onnx_proof
from converters.targets.onnx_config import genai_config
from converters.targets.onnx_proof import ProvenText, prove
from converters.targets.onnx_tokenizer import BYTE_LEVEL_CLASS, PIECE_CLASS, ways_to_write
from converters.template_texts import CONVERSATIONS
from tests.converters.chat_templates import CHATML, HEADERS, INSTRUCTIONS, THINKING, TURNS, Example
from tests.converters.small_tokenizer import small_tokenizer_json
from tests.converters.targets.onnx_models import onnx_model, onnx_source
from toolkit.errors import FidelityError, FormatError

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{{ '' }}{% endfor %}{% endfor %}"
DIGITS = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read_checkpoint(onnx_source(onnx_model("llama"), tmp_path_factory.mktemp("proof") / "source"))


def with_tokenizer(checkpoint: Checkpoint, **changes: Any) -> Checkpoint:
    return replace(checkpoint, tokenizer=replace(checkpoint.tokenizer, **changes))


def proven(checkpoint: Checkpoint) -> ProvenText:
    return prove(checkpoint, genai_config(checkpoint.spec, 256))


def edited(checkpoint: Checkpoint, **changes: Any) -> bytes:
    assert checkpoint.tokenizer.tokenizer_json is not None
    return json.dumps(json.loads(checkpoint.tokenizer.tokenizer_json) | changes).encode()


def gemma_like(checkpoint: Checkpoint, **options: bool) -> Checkpoint:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    files = TokenizerFiles("sentencepiece", small_tokenizer_json(**options), None, add_bos=True, config=config)
    return replace(checkpoint, tokenizer=files)


def test_a_byte_level_tokenizer_is_read_alike_as_it_is(checkpoint: Checkpoint) -> None:
    text = proven(checkpoint)
    assert text.n_texts > 300
    assert text.files()["tokenizer.json"] == checkpoint.tokenizer.tokenizer_json
    assert json.loads(text.files()["tokenizer_config.json"])["tokenizer_class"] == BYTE_LEVEL_CLASS
    assert text.chat_template is None and "chat_template.jinja" not in text.files()


def test_single_digits_are_cut_by_an_expression(checkpoint: Checkpoint) -> None:
    """Merges join ½ to the space before it, unless digits, of which it is one, stand alone."""
    data = json.loads(checkpoint.tokenizer.tokenizer_json or b"")
    data["model"]["merges"] += [["Ġ", "Â"], ["ĠÂ", "½"]]
    data["model"]["vocab"] |= {"ĠÂ": 259, "ĠÂ½": 260}
    for token in data["added_tokens"]:
        token["id"] += 2
    source = with_tokenizer(checkpoint, tokenizer_json=json.dumps(data | {"pre_tokenizer": DIGITS}).encode())
    first, *others = ways_to_write(source.tokenizer, 256)
    assert first.rewrites[0] == "digits are split by an expression"
    assert proven(source).tokenizer == first
    unchanged = next(way for way in others if way.tokenizer_json == source.tokenizer.tokenizer_json)
    assert "Digits" in unchanged.tokenizer_json.decode()


def test_a_sentencepiece_like_tokenizer_is_named_after_its_algorithm(checkpoint: Checkpoint) -> None:
    text = proven(gemma_like(checkpoint, cuts_runs=True))
    assert json.loads(text.files()["tokenizer_config.json"])["tokenizer_class"] == PIECE_CLASS
    assert text.as_manifest(add_bos=True) == {
        "kind": "huggingface",
        "verified_texts": text.n_texts,
        "rewrites": ["30 added tokens of spaces are written with spaces", f"tokenizer_class is {PIECE_CLASS}"],
        "prepend_bos": True,
    }


def test_a_tokenizer_the_runtime_reads_differently_is_refused_with_the_text(checkpoint: Checkpoint) -> None:
    with pytest.raises(FidelityError, match="does not work in onnxruntime-genai") as caught:
        proven(gemma_like(checkpoint, cuts_runs=True, normalize=True))
    assert "texts differ, first" in caught.value.why and "expected [" in caught.value.why
    assert caught.value.exit_code == 6 and caught.value.fix == "use another target: --to gguf, litert or mlx"


def test_an_entry_no_merge_reaches_is_found_by_the_runtime_and_refused(checkpoint: Checkpoint) -> None:
    data = json.loads(checkpoint.tokenizer.tokenizer_json or b"")
    data["model"]["merges"].remove(["Ġ", "Ġ"])
    with pytest.raises(FidelityError, match="does not work in onnxruntime-genai"):
        proven(with_tokenizer(checkpoint, tokenizer_json=json.dumps(data).encode()))


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff", b'{"pre_tokenizer": 3}', b'{"added_tokens": [3]}'])
def test_a_damaged_tokenizer_is_a_format_error(checkpoint: Checkpoint, content: bytes | None) -> None:
    with pytest.raises(FormatError):
        proven(with_tokenizer(checkpoint, tokenizer_json=content))


def with_template(checkpoint: Checkpoint, example: Example) -> Checkpoint:
    """The template's own control tokens become the tokenizer's."""
    named = dict.fromkeys([*example.special_tokens.values(), "<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    data = json.loads(checkpoint.tokenizer.tokenizer_json or b"")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    data["added_tokens"] = [{"id": 259 + i, "content": text, **flags, "special": True} for i, text in enumerate(named)]
    config = checkpoint.tokenizer.config | example.special_tokens
    source = with_tokenizer(checkpoint, tokenizer_json=json.dumps(data).encode(), config=config)
    return replace(source, chat_template=example.template)


@pytest.mark.parametrize("example", [CHATML, TURNS, HEADERS, INSTRUCTIONS], ids=["chatml", "turns", "headers", "instructions"])
def test_templates_in_the_wild_are_rendered_and_tokenized_alike(checkpoint: Checkpoint, example: Example) -> None:
    """Also those that write BOS themselves: it comes once."""
    text = proven(with_template(checkpoint, example))
    assert 10 < text.n_conversations <= len(CONVERSATIONS)
    assert text.files()["chat_template.jinja"].decode() == example.template
    assert text.as_manifest(add_bos=True)["prepend_bos"] is False


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (THINKING.template, "1 of 23 conversations differ; number 21"),
        ("{% for m in messages %}{% filter upper %}{{ m.content }}{% endfilter %}{% endfor %}", "got a refusal"),
    ],
)
def test_a_template_the_runtime_renders_differently_is_refused_with_the_difference(
    checkpoint: Checkpoint, template: str, said: str
) -> None:
    with pytest.raises(FidelityError, match="does not say in onnxruntime-genai") as caught:
        proven(with_template(checkpoint, replace(CHATML, template=template)))
    assert said in caught.value.why


def test_a_template_that_renders_nothing_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(FidelityError, match="renders no conversation"):
        proven(replace(checkpoint, chat_template="{{ raise_exception('no') }}"))


def test_a_template_that_never_ends_is_ended(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.template_source.CPU_S", 2.0)
    with pytest.raises(FormatError, match="takes too much to render") as caught:
        proven(replace(checkpoint, chat_template=ENDLESS))
    assert "in transformers" in caught.value.why and caught.value.exit_code == 4


def test_a_template_that_only_the_runtime_cannot_bear_is_ended_too(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_proof, "CPU_S", 2.0)
    monkeypatch.setattr(onnx_proof, "expected_conversations", lambda checkpoint: ("",) * len(CONVERSATIONS))
    with pytest.raises(FormatError, match="takes too much to render") as caught:
        proven(replace(checkpoint, chat_template=ENDLESS))
    assert "in onnxruntime-genai" in caught.value.why


def test_a_death_over_the_tokenizer_is_not_the_templates(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(function: str, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        if "texts" in arguments:
            raise ChildDeathError("died", why="of it", fix="none", cause="SIGSEGV")
        return run_in_child(function, arguments, **options)

    monkeypatch.setattr(onnx_proof, "run_in_child", die)
    with pytest.raises(ChildDeathError):
        proven(replace(checkpoint, chat_template=CHATML.template))


def test_files_of_a_base_model_ask_for_bos_only_where_the_checkpoint_does(checkpoint: Checkpoint, tmp_path: Path) -> None:
    text = proven(checkpoint)
    assert text.as_manifest(add_bos=False)["prepend_bos"] is False
