"""A checkpoint's tokenizer as the metadata llama.cpp tokenizes by: tokens, types, and merges or scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from converters.architectures.gguf_dims import TURN_END_TOKENS
from converters.checkpoint import Piece, TokenizerFiles
from converters.read.bpe_pretokenizers import SplittingRule, splitting_rules
from converters.read.piece_merges import SPACE
from converters.sentencepiece_model import PieceType, vocabulary_from_model, vocabulary_from_tokenizer_json
from converters.spec import ModelSpec
from converters.tokenizer import special_tokens
from converters.tokenizer_texts import proof_texts
from toolkit.errors import FormatError, UnsupportedModelError

_PREFIX = "tokenizer.ggml."
# Turn ends by the key llama.cpp looks for them under. It knows all of TURN_END_TOKENS by their texts, as tokens that end an
# answer; a stop token of another name goes where there is room.
_TURN_ENDS = {
    "eot_token_id": ("<end_of_turn>", "<|im_end|>", "<|eot_id|>"),
    "eom_token_id": ("<|eom_id|>",),
}


def with_merging_runs(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The same vocabulary with runs of spaces that merge before all else, instead of being cut out of a text longest first.

    Hugging Face matches such runs as added tokens or merges them (40 spaces become 16 + 24 in Gemma's tokenizer.json),
    llama.cpp cuts (31 + 9): which of the two a checkpoint means, only its ids tell.
    """
    tokens, types, scores = (list(metadata[_PREFIX + key]) for key in ("tokens", "token_type", "scores"))
    best = max((score for score, kind in zip(scores, types, strict=True) if kind == PieceType.NORMAL), default=0.0)
    for token_id, text in enumerate(tokens):
        if types[token_id] == PieceType.USER_DEFINED and len(text) > 1 and not text.strip(" " + SPACE):
            tokens[token_id], types[token_id] = text.replace(" ", SPACE), int(PieceType.NORMAL)
            scores[token_id] = best + 1.0 + 1.0 / len(text)
    return {**metadata, _PREFIX + "tokens": tokens, _PREFIX + "token_type": types, _PREFIX + "scores": scores}


def tokenizer_metadata(files: TokenizerFiles, spec: ModelSpec) -> dict[str, Any]:
    """Every `tokenizer.ggml.` key. The token list is padded to the rows of the embedding table, as llama.cpp asks.

    Raises:
        FormatError: There is no tokenizer, or it is damaged.
        UnsupportedModelError: It splits text, or joins pieces, in a way llama.cpp has no name for.
    """
    tokenizer_json = files.require_json()
    try:
        data = json.loads(tokenizer_json)
        added = {token["id"]: token for token in data.get("added_tokens") or ()}
        ids: dict[str, int] = {**data["model"]["vocab"], **{token["content"]: token_id for token_id, token in added.items()}}
        if files.kind == "bpe-byte-level":
            texts = {token_id: text for text, token_id in ids.items()}
            metadata, pieces = _byte_level(data), [Piece(texts.get(i, ""), 0.0, _added_type(added.get(i))) for i in range(max(texts) + 1)]
        else:
            pieces = _sentencepiece(files, added)
            metadata = {"model": "llama", "pre": "default", "add_space_prefix": files.added_space_prefix}
            metadata["scores"] = [float(piece.score) for piece in pieces] + [-1000.0] * (spec.vocab_size - len(pieces))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise FormatError("tokenizer.json cannot be read", why=why, fix="download the checkpoint again") from error
    pieces = _padded(pieces, spec.vocab_size)
    metadata |= {"tokens": [piece.text for piece in pieces], "token_type": [int(piece.type) for piece in pieces]}
    metadata |= _special_ids(files, spec, {piece.text: token_id for token_id, piece in enumerate(pieces)})
    metadata |= {"add_bos_token": files.add_bos, "add_eos_token": False}
    return {_PREFIX + key: value for key, value in metadata.items()}


def _added_type(token: Mapping[str, Any] | None) -> int:
    if token is None:
        return PieceType.NORMAL
    return PieceType.CONTROL if token.get("special") else PieceType.USER_DEFINED


def _padded(pieces: list[Piece], vocab_size: int) -> list[Piece]:
    """As many pieces as rows; ids without a text get llama.cpp's own name for them, and its type for what is never used."""
    empty = Piece("", -1000.0, PieceType.UNUSED)
    padded = [*pieces, *[empty] * (vocab_size - len(pieces))]
    for token_id, piece in enumerate(padded):
        name = f"[PAD{token_id}]"
        if piece.text in ("", name):
            padded[token_id] = Piece(name, piece.score, PieceType.UNUSED)
    if len({piece.text for piece in padded}) < len(padded):
        raise ValueError("two tokens have the same text")
    return padded


def _byte_level(data: Mapping[str, Any]) -> dict[str, Any]:
    pairs = [merge.split(" ") if isinstance(merge, str) else list(merge) for merge in data["model"]["merges"]]
    if any(len(pair) != 2 or " " in pair[0] + pair[1] for pair in pairs):
        raise ValueError("a merge is no pair of tokens without spaces")
    merges = [f"{left} {right}" for left, right in pairs]
    return {"model": "gpt2", "pre": _splitting_name(data), "merges": merges, "add_space_prefix": False}


def _splitting_name(data: Mapping[str, Any]) -> str:
    """The `tokenizer.ggml.pre` whose rule splits every proof text as this tokenizer does.

    Rules are compared by what they do: the same rule is spelled in several ways.
    """
    for name, rule in splitting_rules().items():
        if rule.ignore_merges == bool(data["model"].get("ignore_merges", False)) and _splits_alike(data, rule):
            return name
    raise UnsupportedModelError(
        "this tokenizer splits text in a way that is not known here",
        why=f"none of {', '.join(splitting_rules())} splits the proof texts alike; a wrong name would change token ids silently",
        fix="use another target, or add the rule to converters/read/bpe_pretokenizers.py",
    )


def _splits_alike(data: Mapping[str, Any], rule: SplittingRule) -> bool:
    mine, theirs = (_splitter(part.get("normalizer"), part["pre_tokenizer"]) for part in (data, rule._asdict()))
    texts = proof_texts((), ())
    return all(mine(text) == theirs(text) for text in texts)


def _splitter(normalizer: Any, pre_tokenizer: Any) -> Any:
    """A function from a text to the pieces that merges cannot cross."""
    from tokenizers import Tokenizer

    model = {"type": "BPE", "vocab": {}, "merges": []}
    document = {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": model}
    tokenizer = Tokenizer.from_str(json.dumps(document))

    def split(text: str) -> list[str]:
        normalized = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized)]

    return split


def _sentencepiece(files: TokenizerFiles, added: Mapping[int, Mapping[str, Any]]) -> list[Piece]:
    """The source's own pieces if it has them (GGUF), else those of tokenizer.model or tokenizer.json in GGUF's spelling."""
    if files.pieces is not None:
        return list(files.pieces)
    assert files.tokenizer_json is not None
    vocabulary = vocabulary_from_model(files.sentencepiece_model) if files.sentencepiece_model else None
    vocabulary = vocabulary or vocabulary_from_tokenizer_json(files.tokenizer_json)
    if vocabulary is None:
        raise UnsupportedModelError(
            "this tokenizer cannot be written for llama.cpp",
            why="it marks spaces like SentencePiece, but is no BPE with byte fallback, or normalizes text by a table",
            fix="use another target: --to mlx or onnx",
        )
    pieces = list(vocabulary.pieces) + [Piece("", -1000.0, PieceType.UNUSED)] * (max(added, default=-1) + 1 - len(vocabulary.pieces))
    for token_id, token in added.items():
        if pieces[token_id].type != PieceType.UNKNOWN:
            pieces[token_id] = Piece(token["content"], pieces[token_id].score, _added_type(token))
    # llama.cpp cuts user defined pieces out of a text before its spaces are replaced.
    return [p._replace(text=p.text.replace(SPACE, " ")) if p.type == PieceType.USER_DEFINED else p for p in pieces]


def _special_ids(files: TokenizerFiles, spec: ModelSpec, ids: Mapping[str, int]) -> dict[str, int]:
    special: dict[str, int] = {}
    named = special_tokens(files)
    for key, stated, name in (("bos_token_id", spec.bos_token_id, "bos_token"), ("padding_token_id", spec.pad_token_id, "pad_token")):
        token_id = ids.get(named.get(name, "")) if stated is None else stated
        if token_id is not None:
            special[key] = token_id
    if (unknown := ids.get(named.get("unk_token", ""))) is not None:
        special["unknown_token_id"] = unknown
    stops = list(spec.eos_token_ids)
    if stops:
        special["eos_token_id"] = stops.pop(0)
    texts = {token_id: text for text, token_id in ids.items()}
    for key, turn_ends in _TURN_ENDS.items():
        found = next((token_id for token_id in stops if texts[token_id] in turn_ends), None)
        if found is not None:
            special[key] = found
            stops.remove(found)
    unnamed = [token_id for token_id in stops if texts[token_id] not in TURN_END_TOKENS]
    free = [key for key in _TURN_ENDS if key not in special]
    return special | dict(zip(free, unnamed, strict=False))
