"""A tiny random Whisper for the ONNX target: transformers' model, the checkpoint read from it, and folders written from that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.read.ctranslate2 import read_ctranslate2
from converters.recipe import load_recipe
from converters.targets.onnx_whisper import TARGET
from tests.converters.tiny_whisper import tiny_whisper, write_ctranslate2
from tests.tiny_speech import TOKEN_IDS

# Sizes that groups of 32 divide, each another.
SIZES = {"d_model": 96, "encoder_ffn_dim": 160, "decoder_ffn_dim": 128}


@dataclass(frozen=True)
class OnnxWhisper:
    """A model and its checkpoint; tests must not change either."""

    model: Any
    checkpoint: Any

    @property
    def spec(self) -> dict[str, Any]:
        """What a manifest says about the model, after its trip through JSON."""
        spec: dict[str, Any] = json.loads(json.dumps(self.checkpoint.spec.as_dict()))
        return spec

    def write(self, recipe: str, folder: Path) -> Path:
        """The folder with both graphs of a recipe."""
        folder.mkdir(parents=True, exist_ok=True)
        nothing: Any = None
        return TARGET.quantize(self.checkpoint, folder, load_recipe(recipe), folder, nothing)

    def expected(self, mel: np.ndarray, token_ids: Sequence[int] = TOKEN_IDS) -> np.ndarray:
        """(n, vocab_size): transformers' logits after each token, on a spectrogram of (n_mels, n_frames)."""
        import torch

        with torch.inference_mode():
            answer = self.model(input_features=torch.from_numpy(mel)[None], decoder_input_ids=torch.tensor([list(token_ids)]))
        logits: np.ndarray = answer.logits[0].numpy()
        return logits


def onnx_whisper(folder: Path, **changes: Any) -> OnnxWhisper:
    """Random weights, the same for the same sizes."""
    model = tiny_whisper(**(SIZES | changes))
    return OnnxWhisper(model, read_ctranslate2(write_ctranslate2(model, folder / "tiny")))
