"""A SentencePiece-like tokenizer of about a thousand pieces, spelled twice: as tokenizer.json and as GGUF has it.

The two are built independently of `converters.sentencepiece_model`: merges are learned by the tokenizers library.
"""

from __future__ import annotations

from functools import cache

from converters.checkpoint import Piece
from converters.corpus import documents

SPACE = "\u2581"
CONTROL = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
RUNS = tuple(SPACE * length for length in range(2, 32))
USER_DEFINED = ("\n", "\n\n", "<table>")


@cache
def learned() -> tuple[list[str], list[tuple[str, str]]]:
    """(pieces in the order they were learned, merges)."""
    import json

    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=1600, special_tokens=["<unk>"], show_progress=False)
    lines = [line for purpose in ("calibration", "verification") for document in documents(purpose) for line in document.text.split("\n")]
    tokenizer.train_from_iterator(lines, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    by_id = sorted(model["vocab"], key=model["vocab"].get)
    taken = {*CONTROL, *RUNS, *USER_DEFINED}
    merges = [(left, right) for left, right in model["merges"] if left + right not in taken]
    merged = list(dict.fromkeys(left + right for left, right in merges))
    characters = [piece for piece in by_id if piece not in taken and piece not in merged]
    return merged + characters, merges


def all_texts() -> list[str]:
    return [*CONTROL, *USER_DEFINED, *RUNS, *(f"<0x{byte:02X}>" for byte in range(256)), *learned()[0]]


def small_tokenizer_json(*, normalize: bool = False, cuts_runs: bool = False) -> bytes:
    """As Gemma's: runs of spaces and newlines are added tokens, and runs also merge.

    `normalize` adds NFKC, which no list of pieces can express; `cuts_runs` cuts runs out whole before anything merges.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    ids = {text: token_id for token_id, text in enumerate(all_texts())}
    runs = [(run[:cut], run[cut:]) for run in RUNS for cut in range(1, len(run))]
    model = models.BPE(vocab=ids, merges=runs + learned()[1], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), spaces]) if normalize else spaces
    if cuts_runs:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(reversed(RUNS))), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*USER_DEFINED, *RUNS)])
    data: str = tokenizer.to_str()
    return data.encode()


def small_pieces() -> list[Piece]:
    """As in a GGUF file: runs spelled with spaces, every special piece scored -1000, the rest by rank."""
    special = [Piece(text, -1000.0, 3) for text in CONTROL]
    special += [Piece(text.replace(SPACE, " "), -1000.0, 4) for text in (*USER_DEFINED, *RUNS)]
    special += [Piece(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    return special + [Piece(text, -float(rank), 1) for rank, text in enumerate(learned()[0])]
