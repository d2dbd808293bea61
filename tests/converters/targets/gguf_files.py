"""Tiny GGUF files written by the target, for its tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint import Checkpoint
from converters.read import read_checkpoint
from converters.recipe import Recipe, load_recipe
from converters.targets.base import ConvertOptions, Workshop
from converters.targets.gguf import GgufTarget
from converters.targets.gguf_run import LlamaCppScorer
from converters.targets.gguf_tokenizer import tokenizer_metadata
from converters.targets.gguf_vocabulary import ProvenVocabulary
from tests.converters.tiny_checkpoints import CONFIGS, VOCAB, save_hf, tiny_model

# llama.cpp runs every Qwen with full attention, so that one is refused.
WRITABLE = [name for name in CONFIGS if name != "qwen2-sliding"]
TOKEN_IDS = [i * 11 % VOCAB for i in range(24)]  # as `tiny_checkpoints.logits`
# Every row a whole number of blocks of 32.
BLOCKS = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def writable_model(name: str, **changes: Any) -> Any:
    """A tiny model that GGUF can say everything about: outside the 27B models query_pre_attn_scalar is head_dim."""
    head_dim = changes.get("head_dim", 12)
    scalar = {"query_pre_attn_scalar": head_dim} if name.startswith(("gemma2", "gemma3")) else {}
    return tiny_model(name, bos_token_id=260, eos_token_id=261, pad_token_id=259, **scalar, **changes)


def writable_checkpoint(name: str, folder: Path, **changes: Any) -> Checkpoint:
    return read_checkpoint(save_hf(writable_model(name, **changes), folder / "source"))


def write(checkpoint: Checkpoint, folder: Path, recipe: str | Recipe = "fp32") -> Path:
    """The file of one recipe, through every stage that writes it, but without asking llama.cpp about the vocabulary."""
    target, options, asked = GgufTarget(), ConvertOptions(128), load_recipe(recipe) if isinstance(recipe, str) else recipe
    vocabulary = tokenizer_metadata(checkpoint.tokenizer, checkpoint.spec)
    target._proven.get(checkpoint.content_hash, lambda: ProvenVocabulary(checkpoint.tokenizer.kind, vocabulary, None))
    target.check(checkpoint, [asked], options)
    places = [folder / f"{stage}-{asked.name}" for stage in ("lowered", "quantized")]
    for place in places:
        place.mkdir(parents=True)
    lowered = target.lower(checkpoint, options, places[0], Workshop())
    return target.quantize(checkpoint, lowered, asked, places[1], Workshop())


def llama_logits(path: Path) -> np.ndarray:
    """(24, vocab) float32 from llama.cpp."""
    return np.concatenate(list(LlamaCppScorer(path).score(TOKEN_IDS)))
