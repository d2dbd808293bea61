"""A manifest and a bundle of plain bytes: all that checking needs, and no engine could open."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from toolkit.manifest import MANIFEST_NAME, Fidelity, FileRecord, LicenseRecord, Manifest, SourceRecord

CONTENTS = {"model.bin": b"weights" * 1000, "tokenizer/vocab.txt": b"a\nb\n"}


def small_fidelity(**changes: Any) -> Fidelity:
    figures: dict[str, Any] = {
        "n_tokens": 2048,
        "kl_mean": 0.01,
        "kl_p99": 0.1,
        "top1_agreement": 0.95,
        "perplexity": 12.1,
        "reference_perplexity": 12.0,
        "max_abs_logit_error": 1.5,
        "greedy_tokens_equal": 60,
        "greedy_tokens_compared": 64,
        "verdict": "pass",
        "gates": {"kl_mean": 0.03},
    }
    return Fidelity(**{**figures, **changes})


def small_manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "name": "small-litert-int8",
        "target": "litert",
        "recipe": {"name": "int8"},
        "spec": {"model_type": "llama", "rope": {"full": {"theta": 10000.0}}},
        "source": SourceRecord("hf:org/small@main", "abc", {"model.safetensors": "1" * 64}),
        "license": LicenseRecord("Apache-2.0", "https://www.apache.org/licenses/LICENSE-2.0"),
        "context_length": 2048,
        "chat": True,
        "chat_template": "{{ messages[0]['content'] }}",
        "tokenizer": {"kind": "sentencepiece", "verified_texts": 9},
        "stop_token_ids": (1, 106),
        "bits_per_weight": 8.25,
        "files": tuple(FileRecord(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in CONTENTS.items()),
        "tools": {"litert-torch": "0.10.0"},
        "created_at": "2026-11-30T12:00:00+00:00",
        "memory": {"weights_bytes": 7000},
        "fidelity": small_fidelity(),
        "entry": "model.bin",
    }
    return Manifest(**{**fields, **changes})


def small_bundle(folder: Path, **changes: Any) -> Path:
    """Write the files and their manifest; returns the folder."""
    for name, data in CONTENTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / MANIFEST_NAME).write_text(small_manifest(**changes).to_json(), encoding="utf-8")
    return folder
