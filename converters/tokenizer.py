"""Which tokenizer a bundle carries: a SentencePiece model if it is proven equal, else the checkpoint's tokenizer.json.

The choice decides memory: Gemma's 262,144 pieces cost 600 MB and two seconds as tokenizer.json, and a tenth of both as
a SentencePiece model. Equal means equal ids, and equal text back from them, on every text of `tokenizer_texts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from converters.checkpoint import TokenizerFiles
from converters.litertlm import PackagedTokenizer
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


@dataclass(frozen=True)
class Difference:
    """A text that two tokenizers treat differently: ids, or what the ids say when decoded."""

    text: str
    expected: object
    got: object

    def __str__(self) -> str:
        return f"{self.text[:60]!r}: expected {_short(self.expected)}, got {_short(self.got)}"


def choose_tokenizer(files: TokenizerFiles) -> PackagedTokenizer:
    """Pick the tokenizer to pack, and prove it.

    Raises:
        FormatError: The checkpoint has no tokenizer.json to pack or to prove against, or it is damaged.
        FidelityError: The runtime reads the checkpoint's own tokenizer.json differently.
        BackendUnavailableError: The runtime that has to prove it is not installed.
    """
    if files.tokenizer_json is None:
        raise FormatError(
            "this checkpoint has no tokenizer",
            why="tokenizer.json is missing, and nothing else says which ids its texts have",
            fix="put the tokenizer.json of the original model beside the weights",
        )
    reference = _load(files.tokenizer_json)
    texts = proof_texts(_special_texts(reference), _plain_pieces(reference))
    reason = "byte-level BPE, which SentencePiece cannot express"
    if files.kind == "sentencepiece":
        reason = "its vocabulary is not BPE with byte fallback and U+2581 for spaces"
        for vocabulary in _vocabularies(files):
            packaged = PackagedTokenizer(
                "sentencepiece", build_sentencepiece(vocabulary), len(texts), "equal to tokenizer.json on every text"
            )
            differences = prove_equal(packaged.data, files.tokenizer_json, texts) or prove_in_runtime(packaged, files.tokenizer_json, texts)
            if not differences:
                return packaged
            reason = f"a SentencePiece model differs on {len(differences)} of {len(texts)} texts, first {differences[0]}"
    packaged = PackagedTokenizer("huggingface", files.tokenizer_json, len(texts), reason)
    if differences := prove_in_runtime(packaged, files.tokenizer_json, texts):
        raise FidelityError(
            "this tokenizer does not work in the LiteRT-LM runtime",
            why=f"{len(differences)} of {len(texts)} texts differ, first {differences[0]}",
            fix="convert to another target: --to gguf, onnx or mlx",
        )
    return packaged


def prove_equal(model: bytes, tokenizer_json: bytes, texts: Sequence[str] | None = None) -> list[Difference]:
    """Compare a SentencePiece model with a tokenizer.json: ids of each text, and the text of those ids.

    Args:
        model: A SentencePiece model proto.
        tokenizer_json: A Hugging Face fast tokenizer, the reference.
        texts: Default: `proof_texts` with the reference's own control tokens and pieces.

    Returns:
        One entry for each text that differs; empty means equal.
    """
    import sentencepiece

    reference = _load(tokenizer_json)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    if texts is None:
        texts = proof_texts(_special_texts(reference), _plain_pieces(reference))
    return list(_differences(texts, reference, processor.encode, processor.decode))


def prove_in_runtime(packaged: PackagedTokenizer, tokenizer_json: bytes, texts: Sequence[str]) -> list[Difference]:
    """Compare a packed tokenizer, as the LiteRT-LM runtime reads it, with a tokenizer.json. See `prove_equal`.

    Raises:
        BackendUnavailableError: The runtime is not installed.
        ToolkitError: The runtime died, or refused the tokenizer.
    """
    reference = _load(tokenizer_json)
    answers = encode_in_runtime(packaged, texts, reference.get_vocab_size(with_added_tokens=True))
    ids = dict(zip(texts, answers.token_ids, strict=True))
    decoded = dict(zip(answers.token_ids, answers.decoded, strict=True))
    return list(_differences(texts, reference, lambda text: list(ids[text]), lambda token_ids: decoded[tuple(token_ids)]))


def _differences(
    texts: Sequence[str], reference: Any, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]
) -> Iterator[Difference]:
    for text in texts:
        expected = reference.encode(text, add_special_tokens=False).ids
        got = list(encode(text))
        if got != expected:
            yield Difference(text, expected, got)
            continue
        expected_text = reference.decode(expected, skip_special_tokens=False)
        if (got_text := decode(got)) != expected_text:
            yield Difference(text, expected_text, got_text)


def _vocabularies(files: TokenizerFiles) -> Iterator[Vocabulary]:
    """What a model can be built from, the source's own scores first."""
    assert files.tokenizer_json is not None
    if files.pieces is not None:
        yield Vocabulary(files.pieces, files.added_space_prefix)
    elif files.sentencepiece_model is not None and (vocabulary := vocabulary_from_model(files.sentencepiece_model)):
        yield vocabulary
    if derived := vocabulary_from_tokenizer_json(files.tokenizer_json):
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


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
