"""Tokenizers in llama.cpp's terms: what is written, and whether llama.cpp reads it as the checkpoint means it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from converters.checkpoint import Checkpoint, TokenizerFiles
from converters.child import ChildDeathError
from converters.read.bpe_pretokenizers import splitting_rules
from converters.targets import gguf_proof, gguf_vocabulary
from converters.targets.gguf_tokenizer import tokenizer_metadata, with_merging_runs
from converters.targets.gguf_vocabulary import prove_vocabulary
from converters.template_texts import CONVERSATIONS
from tests.converters.chat_templates import CHATML, TURNS
from tests.converters.small_model import small_checkpoint, small_spec
from tests.converters.small_tokenizer import all_texts, small_pieces, small_tokenizer_json
from tests.converters.targets.gguf_files import writable_checkpoint
from toolkit.errors import EngineError, FidelityError, FormatError, UnsupportedModelError

CONFIG = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}


def small(*, cuts_runs: bool = False, has_pieces: bool = False, n_padding: int = 0) -> Checkpoint:
    """A checkpoint with the small SentencePiece-like tokenizer: <eos> 1, <bos> 2, <end_of_turn> 5."""
    files = TokenizerFiles(
        "sentencepiece", small_tokenizer_json(cuts_runs=cuts_runs), small_pieces() if has_pieces else None, True, config=CONFIG
    )
    spec = replace(small_spec(), vocab_size=len(all_texts()) + n_padding, bos_token_id=2, eos_token_ids=(1, 5), pad_token_id=0)
    return replace(small_checkpoint(), spec=spec, tokenizer=files)


@pytest.mark.parametrize("name", splitting_rules())
def test_a_splitting_rule_is_known_by_what_it_does(name: str, tmp_path: Path) -> None:
    checkpoint = writable_checkpoint("llama", tmp_path)
    rule = splitting_rules()[name]
    data = json.loads(checkpoint.tokenizer.tokenizer_json or b"")
    data |= {"pre_tokenizer": rule.pre_tokenizer, "normalizer": rule.normalizer}
    data["model"]["ignore_merges"] = rule.ignore_merges
    files = replace(checkpoint.tokenizer, tokenizer_json=json.dumps(data).encode())
    assert tokenizer_metadata(files, checkpoint.spec)["tokenizer.ggml.pre"] == name


def test_an_unknown_splitting_rule_is_refused(tmp_path: Path) -> None:
    checkpoint = writable_checkpoint("llama", tmp_path)
    data = json.loads(checkpoint.tokenizer.tokenizer_json or b"")
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "Punctuation", "behavior": "Isolated"}, data["pre_tokenizer"]]}
    files = replace(checkpoint.tokenizer, tokenizer_json=json.dumps(data).encode())
    with pytest.raises(UnsupportedModelError, match="splits text in a way that is not known here"):
        tokenizer_metadata(files, checkpoint.spec)


def test_ids_without_a_text_are_padded_by_name(tmp_path: Path) -> None:
    checkpoint = writable_checkpoint("llama", tmp_path)  # 262 tokens, 320 rows
    metadata = tokenizer_metadata(checkpoint.tokenizer, checkpoint.spec)
    assert metadata["tokenizer.ggml.tokens"][261:263] == ["<|im_end|>", "[PAD262]"]
    assert metadata["tokenizer.ggml.token_type"][258:263] == [1, 3, 3, 3, 5]


STOPS: list[tuple[tuple[int, ...], dict[str, int]]] = [
    ((1,), {}),
    ((1, 5), {"eot": 5}),
    ((5, 1), {"eot": 1}),
    ((1, 5, 7), {"eot": 5, "eom": 7}),
]


@pytest.mark.parametrize(("stops", "expected"), STOPS)
def test_every_stop_token_finds_a_key(stops: tuple[int, ...], expected: dict[str, int]) -> None:
    checkpoint = small()
    metadata = tokenizer_metadata(checkpoint.tokenizer, replace(checkpoint.spec, eos_token_ids=stops))
    assert metadata["tokenizer.ggml.eos_token_id"] == stops[0]
    written = {key: metadata[f"tokenizer.ggml.{key}_token_id"] for key in ("eot", "eom") if f"tokenizer.ggml.{key}_token_id" in metadata}
    assert written == expected


def test_pieces_of_a_gguf_file_are_written_as_they_are() -> None:
    metadata = tokenizer_metadata(small(has_pieces=True, n_padding=2).tokenizer, small(n_padding=2).spec)
    pieces = small_pieces()
    assert metadata["tokenizer.ggml.tokens"][: len(pieces)] == [piece.text for piece in pieces]
    assert metadata["tokenizer.ggml.scores"] == [piece.score for piece in pieces] + [-1000.0] * 2
    assert metadata["tokenizer.ggml.token_type"] == [piece.type for piece in pieces] + [5] * 2
    assert (metadata["tokenizer.ggml.bos_token_id"], metadata["tokenizer.ggml.unknown_token_id"]) == (2, 3)


@pytest.mark.parametrize(("cuts_runs", "merges"), [(True, False), (False, True)])
def test_runs_of_spaces_are_spelled_as_the_checkpoints_ids_say(cuts_runs: bool, merges: bool) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    checkpoint = small(cuts_runs=cuts_runs)
    proven = prove_vocabulary(checkpoint)
    assert proven.proof is not None
    assert proven.proof.tokenizer.n_different == 0
    assert proven.proof.tokenizer.n_asked > 300
    first = tokenizer_metadata(checkpoint.tokenizer, checkpoint.spec)
    assert proven.metadata == (with_merging_runs(first) if merges else first)


def test_a_vocabulary_that_means_other_ids_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")

    def shuffled(files: TokenizerFiles, spec: Any) -> dict[str, Any]:
        metadata = tokenizer_metadata(files, spec)
        return {**metadata, "tokenizer.ggml.scores": metadata["tokenizer.ggml.scores"][::-1]}

    monkeypatch.setattr(gguf_vocabulary, "tokenizer_metadata", shuffled)
    with pytest.raises(FidelityError, match=r"this tokenizer does not work in llama.cpp\n  why: \d+ of \d+ texts differ, first "):
        prove_vocabulary(small(cuts_runs=True))


def test_a_template_is_rendered_by_llama_cpp_itself() -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    proven = prove_vocabulary(replace(small(cuts_runs=True), chat_template=TURNS.template))
    assert proven.as_written() == {"chat_template": {"verified_conversations": 23}}


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ messages | no_such_filter }}", "renders no conversation"),
        (CHATML.template.replace("message['content']", "message['content'].title()"), "llama.cpp"),
    ],
)
def test_a_template_llama_cpp_cannot_render_is_refused(template: str, why: str) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    with pytest.raises((FidelityError, FormatError), match=why):
        prove_vocabulary(replace(small(cuts_runs=True), chat_template=template))


def test_a_template_llama_cpp_does_not_take_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.setattr(gguf_vocabulary, "expected_conversations", lambda checkpoint: ("said",) * len(CONVERSATIONS))
    with pytest.raises(FidelityError, match="the chat template does not work in llama.cpp") as caught:
        prove_vocabulary(replace(small(cuts_runs=True), chat_template="{{ messages | no_such_filter }}"))
    assert caught.value.fix == "give the checkpoint a simpler template, or use another target: --to litert, mlx or onnx"


def test_a_template_that_only_llama_cpp_cannot_bear_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{{ '' }}{% endfor %}{% endfor %}"
    monkeypatch.setattr(gguf_proof, "CPU_S", 2.0)
    monkeypatch.setattr(gguf_vocabulary, "expected_conversations", lambda checkpoint: ("",) * len(CONVERSATIONS))
    with pytest.raises(FormatError, match="takes too much to render") as caught:
        prove_vocabulary(replace(small(cuts_runs=True), chat_template=endless))
    assert "in llama.cpp" in caught.value.why


def test_a_death_over_the_vocabulary_is_not_the_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")

    def die(function: str, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        raise ChildDeathError("died", why="of it", fix="none", cause="SIGABRT")

    monkeypatch.setattr(gguf_proof, "run_in_child", die)
    with pytest.raises(ChildDeathError):
        prove_vocabulary(replace(small(cuts_runs=True), chat_template=CHATML.template))


def test_a_server_that_never_starts_is_not_the_templates_fault(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    metadata = tokenizer_metadata(small(cuts_runs=True).tokenizer, small(cuts_runs=True).spec)
    probe, plain = tmp_path / "probe.gguf", tmp_path / "plain.gguf"
    gguf_proof.write_probe(plain, metadata, None)
    with pytest.raises(EngineError, match="server does not start"):
        gguf_proof._ask_template(tmp_path / "missing.gguf", tmp_path / "missing.gguf")
    gguf_proof.write_probe(probe, metadata, TURNS.template)
    assert len(gguf_proof._ask_template(probe, plain)["rendered"]) == len(CONVERSATIONS)


def test_without_llama_cpp_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_vocabulary, "is_available", lambda: False)
    proven = prove_vocabulary(small())
    assert proven.as_manifest()["verified_texts"] == 0
    assert "llama.cpp was not asked" in proven.as_manifest()["reason"]
    assert proven.as_written() == {}


def test_a_checkpoint_without_tokenizer_is_refused() -> None:
    checkpoint = small()
    with pytest.raises(FormatError, match="this checkpoint has no tokenizer"):
        tokenizer_metadata(replace(checkpoint.tokenizer, tokenizer_json=None), checkpoint.spec)
