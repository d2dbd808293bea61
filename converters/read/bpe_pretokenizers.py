"""How text is split before byte-level BPE, for each `tokenizer.ggml.pre` name this project reads.

GGUF stores only a name; llama.cpp and Hugging Face each hold the regular expressions behind it. These are written from
the tokenizers' published definitions, as a Hugging Face `pre_tokenizer`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from toolkit.errors import UnsupportedModelError

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _split(digits: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": _WORDS + digits + _REST}, "behavior": "Isolated", "invert": False}


_GPT2 = _byte_level(use_regex=True)
_SMOLLM = _sequence({"type": "Digits", "individual_digits": True}, _GPT2)
_LLAMA3 = _sequence(_split(r"\p{N}{1,3}"), _byte_level(use_regex=False))
_QWEN2 = _sequence(_split(r"\p{N}"), _byte_level(use_regex=False))
_NFC = {"type": "NFC"}


class SplittingRule(NamedTuple):
    """What a name stands for: a Hugging Face normalizer and pre_tokenizer, whether a word that is a token is taken whole
    (`ignore_merges`), and whether BOS comes first where the file does not say."""

    pre_tokenizer: dict[str, Any]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False
    adds_bos: bool = False


_LLAMA3_RULE = SplittingRule(_LLAMA3, ignore_merges=True, adds_bos=True)
_RULES: dict[str, SplittingRule] = {
    "gpt-2": SplittingRule(_GPT2),
    "smollm": SplittingRule(_SMOLLM),
    "llama-bpe": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "qwen2": SplittingRule(_QWEN2, normalizer=_NFC),
}


def splitting_rule(name: str) -> SplittingRule:
    """The rule behind a `tokenizer.ggml.pre` name.

    Raises:
        UnsupportedModelError: A name whose splitting rule is not known here; guessing would change token ids silently.
    """
    if name not in _RULES:
        raise UnsupportedModelError(
            f"the tokenizer rule {name!r} is not supported",
            why=f"known tokenizer.ggml.pre names are {', '.join(_RULES)}",
            fix="convert from the Hugging Face checkpoint, which carries its tokenizer.json",
        )
    return _RULES[name]


def splitting_rules() -> dict[str, SplittingRule]:
    """Every rule known here under one name; names that mean the same rule are left out."""
    first: dict[str, SplittingRule] = {}
    for name, rule in _RULES.items():
        if rule not in first.values():
            first[name] = rule
    return first
