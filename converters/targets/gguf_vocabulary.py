"""The vocabulary of a GGUF file, and the proof that llama.cpp reads it as the checkpoint's own tokenizer does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from converters.targets import other_targets
from converters.targets.gguf_tokenizer import tokenizer_metadata, with_merging_runs
from converters.targets.llama_cpp import DISTRIBUTION, VERSION, is_available
from converters.template_source import expected_conversations
from toolkit.errors import FidelityError

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.targets.gguf_proof import Proof


@dataclass(frozen=True)
class ProvenVocabulary:
    """Tokenizer keys of a GGUF file, and what llama.cpp made of them.

    Args:
        kind: `bpe-byte-level` or `sentencepiece`.
        metadata: Every `tokenizer.ggml.` key.
        proof: None where llama.cpp is not installed: then nothing is proven.
    """

    kind: str
    metadata: Mapping[str, Any]
    proof: Proof | None

    def as_manifest(self) -> dict[str, Any]:
        """What `Manifest.tokenizer` holds."""
        if self.proof is None:
            reason = f"{DISTRIBUTION} {VERSION} is not installed, so llama.cpp was not asked"
            return {"kind": self.kind, "verified_texts": 0, "reason": reason}
        return {"kind": self.kind, "verified_texts": self.proof.tokenizer.n_asked, "reason": "llama.cpp gives equal ids on every text"}

    def as_written(self) -> dict[str, Any]:
        """What the manifest says about template and stop tokens; empty where nothing was asked."""
        if self.proof is None:
            return {}
        asked = {} if self.proof.template is None else {"chat_template": {"verified_conversations": self.proof.template.n_asked}}
        ignored = list(self.proof.ignored_stop_ids)
        return asked | ({"stop_token_ids_llama_cpp_ignores": ignored} if ignored else {})


def prove_vocabulary(checkpoint: Checkpoint) -> ProvenVocabulary:
    """Write a checkpoint's vocabulary in llama.cpp's terms and let llama.cpp read it.

    Raises:
        FormatError: Tokenizer or template are damaged, or take too much.
        UnsupportedModelError: llama.cpp has no name for how the tokenizer splits or joins.
        FidelityError: llama.cpp encodes a text, or renders a conversation, differently.
        EngineError, ChildDeathError: llama.cpp refuses the vocabulary, or died of it.
    """
    first = tokenizer_metadata(checkpoint.tokenizer, checkpoint.spec)
    if not is_available():
        return ProvenVocabulary(checkpoint.tokenizer.kind, first, None)
    from converters.targets.gguf_proof import prove

    expected = expected_conversations(checkpoint)
    proofs = ((vocabulary, prove(checkpoint, vocabulary, expected)) for vocabulary in _spellings(first))
    tried: list[tuple[dict[str, Any], Proof]] = []
    for vocabulary, proof in proofs:
        tried.append((vocabulary, proof))
        if not proof.tokenizer.n_different:
            break
    metadata, best = min(tried, key=lambda entry: entry[1].tokenizer.n_different)
    _refuse(best, other_targets("gguf", checkpoint.spec.model_type))
    return ProvenVocabulary(checkpoint.tokenizer.kind, metadata, best)


def _spellings(vocabulary: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield vocabulary
    if "tokenizer.ggml.scores" in vocabulary:
        yield with_merging_runs(vocabulary)


def _refuse(proof: Proof, elsewhere: str) -> None:
    if proof.tokenizer.n_different:
        raise FidelityError(
            "this tokenizer does not work in llama.cpp",
            why=f"{proof.tokenizer.n_different} of {proof.tokenizer.n_asked} texts differ, first {proof.tokenizer.first}",
            fix=elsewhere,
        )
    if proof.template_error:
        what, fix = "the chat template does not work in llama.cpp", f"give the checkpoint a simpler template, or {elsewhere}"
        raise FidelityError(what, why=proof.template_error, fix=fix)
    if proof.template is not None and proof.template.n_different:
        raise FidelityError(
            "the chat template does not say in llama.cpp what it says in the checkpoint",
            why=f"{proof.template.n_different} of {proof.template.n_asked} conversations differ, first {proof.template.first}",
            fix=f"give the checkpoint a simpler template, or {elsewhere}",
        )
