"""A tiny random Whisper on its whole way: transformers' model, the CTranslate2 folder, the checkpoint read from it, its float graph.

A window is one second and the decoder holds 40 tokens, so that every step of the way takes milliseconds.
"""

from __future__ import annotations

import array
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tests.converters.tiny_whisper import tiny_whisper, token_ids, write_ctranslate2
from toolkit.manifest import MANIFEST_NAME, FileRecord, LicenseRecord, Manifest, SourceRecord

N_SAMPLES = 16_000
TOLERANCE = 1e-4  # of a logit; litert-torch's own bound on float32
_SPECIAL = token_ids()
PROMPT_IDS = tuple(_SPECIAL[f"<|{name}|>"] for name in ("startoftranscript", "en", "transcribe", "notimestamps"))
TOKEN_IDS = (*PROMPT_IDS, 10, 200, 77, 5)  # a prompt and the text behind it


@dataclass(frozen=True)
class TinySpeech:
    """What the way leaves behind; tests must not change any of it.

    Args:
        model: transformers' own, in float32.
        source: The CTranslate2 folder, as a user has it.
        checkpoint: `source` as its reader gives it.
        hf_dir: The checkpoint as a Hugging Face directory.
        graph: The float .tflite.
    """

    model: Any
    source: Path
    checkpoint: Any
    hf_dir: Path
    graph: Path

    @property
    def spec(self) -> dict[str, Any]:
        """What a manifest says about the model, after its trip through JSON."""
        spec: dict[str, Any] = json.loads(json.dumps(self.checkpoint.spec.as_dict()))
        return spec

    def expected_logits(self, mel: np.ndarray, token_ids: Sequence[int] = TOKEN_IDS) -> np.ndarray:
        """(n, vocab_size): transformers' logits after each token, on a spectrogram of (n_mels, n_frames)."""
        import torch

        with torch.inference_mode():
            answer = self.model(input_features=torch.from_numpy(mel)[None], decoder_input_ids=torch.tensor([list(token_ids)]))
        logits: np.ndarray = answer.logits[0].numpy()
        return logits


def make_tiny_speech(folder: Path) -> TinySpeech:
    """Go the way once; lowering takes some twenty seconds."""
    from converters.child import run_in_child
    from converters.read.ctranslate2 import read_ctranslate2

    model = tiny_whisper()
    source = write_ctranslate2(model, folder / "tiny")
    checkpoint = read_ctranslate2(source)
    checkpoint.write_hf(folder / "hf")
    (folder / "lowered").mkdir()
    arguments = {"hf_dir": str(folder / "hf"), "spec": json.dumps(checkpoint.spec.as_dict()), "out_dir": str(folder / "lowered")}
    made = run_in_child("converters.targets.litert_whisper_export:export_whisper", arguments, what="lower the tiny Whisper")
    return TinySpeech(model, source, checkpoint, folder / "hf", Path(made["model"]))


def can_lower() -> bool:
    """Whether the libraries that lower a model are installed."""
    return find_spec("litert_torch") is not None


def sound(seed: int = 0, n_samples: int = N_SAMPLES) -> np.ndarray:
    """(n_samples,) float32: a gliding tone in noise, another for each seed."""
    time_s = np.arange(n_samples) / 16_000
    tone = 0.4 * np.sin(2 * np.pi * (200 + 150 * seed + 900 * time_s) * time_s)
    return (tone + np.random.default_rng(seed).standard_normal(n_samples) * 0.05).astype(np.float32)


def samples(values: np.ndarray) -> array.array[float]:
    """Sound as the runtime takes it."""
    return array.array("f", values.astype(np.float32).tobytes())


def speech_bundle(speech: TinySpeech, folder: Path, **changes: Any) -> Path:
    """A sealed bundle of the float graph, with fields of its manifest as `changes`; returns the folder."""
    folder.mkdir(parents=True)
    shutil.copyfile(speech.graph, folder / "model.tflite")
    (folder / "tokenizer.json").write_bytes(speech.checkpoint.tokenizer_json)
    contents = {name: (folder / name).read_bytes() for name in ("model.tflite", "tokenizer.json")}
    fields: dict[str, Any] = {
        "name": folder.name,
        "target": "litert",
        "recipe": {"name": "fp32"},
        "spec": speech.spec,
        "source": SourceRecord(str(speech.source), sha256=speech.checkpoint.source.sha256),
        "license": LicenseRecord("unknown"),
        "context_length": speech.spec["max_context_length"],
        "chat": False,
        "chat_template": None,
        "tokenizer": {"kind": "huggingface", "verified_texts": 0},
        "stop_token_ids": (_SPECIAL["<|endoftext|>"],),
        "bits_per_weight": 32.0,
        "files": tuple(FileRecord(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in contents.items()),
        "tools": {},
        "created_at": "2026-11-30T00:00:00+00:00",
        "entry": "model.tflite",
    }
    (folder / MANIFEST_NAME).write_text(Manifest(**{**fields, **changes}).to_json(), encoding="utf-8")
    return folder
