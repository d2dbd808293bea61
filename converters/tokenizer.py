"""Which tokenizer a bundle carries: a SentencePiece model if it is proven equal, else the checkpoint's tokenizer.json.

The choice decides memory: Gemma's 262,144 pieces cost 600 MB and two seconds as tokenizer.json, and a tenth of both as
a SentencePiece model. Equal means equal ids, and equal text back from them, on every text of `tokenizer_texts`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from converters.checkpoint import TokenizerFiles
from converters.litertlm import PackagedTokenizer as PackagedTokenizer
from converters.panics import panics_explained
from converters.runtime_probe import encode_in_runtime
from converters.sentencepiece_model import (
    SPACE,
    Vocabulary,
    build_sentencepiece,
    vocabulary_from_model,
    vocabulary_from_tokenizer_json,
)
from converters.tokenizer_texts import proof_texts
from toolkit.errors import FidelityError, FormatError

_MAX_SPECIAL_TEXTS = 64  # the rest are Gemma's thousands of <unusedN>, which all behave alike


def shortened(value: object) -> str:
    """What two readers say differently, short enough for a line of an error."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True)
class Difference:
    """A text that two readers treat differently: ids, what the ids say when decoded, or what a template makes of it."""

    text: str
    expected: object
    got: object

    def __str__(self) -> str:
        return f"{self.text[:60]!r}: expected {shortened(self.expected)}, got {shortened(self.got)}"


@panics_explained()
def choose_tokenizer(files: TokenizerFiles) -> PackagedTokenizer:
    """Pick the tokenizer to pack, and prove it.

    Raises:
        FormatError: The checkpoint has no tokenizer.json to pack or to prove against, or it is damaged.
        FidelityError: The runtime reads the checkpoint's own tokenizer.json differently.
        BackendUnavailableError: The runtime that has to prove it is not installed.
    """
    tokenizer_json = files.require_json()
    reference = _Reference(tokenizer_json)
    n_texts = len(reference.texts)
    reason = "byte-level BPE, which SentencePiece cannot express"
    if files.kind == "sentencepiece":
        reason = "its vocabulary is not BPE with byte fallback and U+2581 for spaces"
        for model in _models(files):
            packaged = PackagedTokenizer("sentencepiece", model, n_texts, "equal to tokenizer.json on every text")
            differences = reference.compare_model(packaged.data) or reference.compare_runtime(packaged)
            if not differences:
                return packaged
            reason = f"a SentencePiece model differs on {len(differences)} of {n_texts} texts, first {differences[0]}"
    packaged = PackagedTokenizer("huggingface", tokenizer_json, n_texts, reason)
    if differences := reference.compare_runtime(packaged):
        raise FidelityError(
            "this tokenizer does not work in the LiteRT-LM runtime",
            why=f"{len(differences)} of {n_texts} texts differ, first {differences[0]}",
            fix="convert to another target: --to gguf, onnx or mlx",
        )
    return packaged


@panics_explained()
def prove_equal(model: bytes, tokenizer_json: bytes, texts: Sequence[str] | None = None) -> list[Difference]:
    """Compare a SentencePiece model with a tokenizer.json: ids of each text, and the text of those ids.

    Args:
        model: A SentencePiece model proto.
        tokenizer_json: A Hugging Face fast tokenizer, the reference.
        texts: Default: `proof_texts` with the reference's own control tokens and pieces.

    Returns:
        One entry for each text that differs; empty means equal.
    """
    return _Reference(tokenizer_json, texts).compare_model(model)


@panics_explained()
def prove_in_runtime(packaged: PackagedTokenizer, tokenizer_json: bytes, texts: Sequence[str]) -> list[Difference]:
    """Compare a packed tokenizer, as the LiteRT-LM runtime reads it, with a tokenizer.json. See `prove_equal`.

    Raises:
        BackendUnavailableError: The runtime is not installed.
        ToolkitError: The runtime died, or refused the tokenizer.
    """
    return _Reference(tokenizer_json, texts).compare_runtime(packaged)


def special_tokens(files: TokenizerFiles) -> dict[str, str]:
    """What a chat template may call `bos_token`, `eos_token` and so on, as tokenizer_config.json names them."""
    named: dict[str, str] = {}
    for name, value in files.config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            named[name] = text
    return named


def token_texts(files: TokenizerFiles, token_ids: Iterable[int]) -> list[str]:
    """The texts of some token ids, without building the tokenizer (a large one takes seconds).

    Raises:
        FormatError: There is no tokenizer.json, it is damaged, or it has no such id.
    """
    try:
        data = json.loads(files.tokenizer_json or b"")
        by_id = {token_id: text for text, token_id in data["model"]["vocab"].items()}
        by_id |= {token["id"]: token["content"] for token in data.get("added_tokens") or ()}
        return [by_id[token_id] for token_id in token_ids]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            "tokenizer.json names no text for a token the model uses", why=f"{type(error).__name__}: {error}", fix="download it again"
        ) from error


@panics_explained()
def reference_encodings(tokenizer_json: bytes) -> dict[str, list[int]]:
    """Each proof text of a tokenizer with the ids its own library gives it, nothing added.

    Raises:
        FormatError: The bytes are no tokenizer.json, or one the library gives up on.
    """
    reference = _Reference(tokenizer_json)
    return {text: reference.encode(text) for text in reference.texts}


class _Reference:
    """The checkpoint's own tokenizer, and the texts to compare others with it on."""

    def __init__(self, tokenizer_json: bytes, texts: Sequence[str] | None = None) -> None:
        self._tokenizer = _load(tokenizer_json)
        self.texts = proof_texts(_special_texts(self._tokenizer), _plain_pieces(self._tokenizer)) if texts is None else texts

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def compare_model(self, model: bytes) -> list[Difference]:
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        return list(self._differences(processor.encode, processor.decode))

    def compare_runtime(self, packaged: PackagedTokenizer) -> list[Difference]:
        answers = encode_in_runtime(packaged, self.texts, self._tokenizer.get_vocab_size(with_added_tokens=True))
        ids = dict(zip(self.texts, answers.token_ids, strict=True))
        decoded = dict(zip(answers.token_ids, answers.decoded, strict=True))
        return list(self._differences(lambda text: list(ids[text]), lambda token_ids: decoded[tuple(token_ids)]))

    def _differences(self, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]) -> Iterator[Difference]:
        for text in self.texts:
            expected, got = self.encode(text), list(encode(text))
            if got != expected:
                yield Difference(text, expected, got)
                continue
            expected_text = self._tokenizer.decode(expected, skip_special_tokens=False)
            if (got_text := decode(got)) != expected_text:
                yield Difference(text, expected_text, got_text)


def _models(files: TokenizerFiles) -> Iterator[bytes]:
    """Every SentencePiece model worth comparing."""
    for vocabulary in _vocabularies(files):
        yield build_sentencepiece(vocabulary)
        yield build_sentencepiece(vocabulary, merges_runs=True)


def _vocabularies(files: TokenizerFiles) -> Iterator[Vocabulary]:
    """What a model can be built from, the source's own scores first."""
    if files.pieces is not None:
        yield Vocabulary(files.pieces, files.added_space_prefix)
    elif files.sentencepiece_model is not None and (vocabulary := vocabulary_from_model(files.sentencepiece_model)):
        yield vocabulary
    if derived := vocabulary_from_tokenizer_json(files.require_json()):
        yield derived


def _load(tokenizer_json: bytes) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(tokenizer_json.decode("utf-8"))
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise FormatError(
            "tokenizer.json cannot be read", why=str(error)[:200], fix="download the checkpoint again, or convert its original"
        ) from error


def _special_texts(reference: Any) -> list[str]:
    added = [token.content for _, token in sorted(reference.get_added_tokens_decoder().items())]
    unknown = getattr(reference.model, "unk_token", None)
    named = [text for text in added if text != unknown and text.strip() and "unused" not in text and set(text) != {SPACE}]
    return named[:_MAX_SPECIAL_TEXTS]


def _plain_pieces(reference: Any) -> list[str]:
    """A sample of the vocabulary, spread over all ids, with spaces as spaces."""
    size = reference.get_vocab_size(with_added_tokens=False)
    pieces = [reference.id_to_token(token_id) for token_id in range(0, size, max(1, size // 4096))]
    return [piece.replace(SPACE, " ") for piece in pieces if piece and not piece.startswith("<")]
