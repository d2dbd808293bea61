"""manifest.json: what a bundle states about itself. The only thing two rooms share.

Schema and meaning of each field: docs/formats/manifest.md. Reading one: `toolkit.manifest_reader`.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
MAX_MANIFEST_BYTES = 4 * 2**20
SEAL_FIELD = "manifest_sha256"
EMPTY_SEAL = "0" * 64


@dataclass(frozen=True)
class FileRecord:
    """One native file of a bundle: a path relative to the bundle, its size and its SHA-256 in hex."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class SourceRecord:
    """Where the weights came from: as asked (`uri`), pinned (`revision`), and what was read (`sha256` by file name)."""

    uri: str
    revision: str | None = None
    sha256: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LicenseRecord:
    """SPDX id or the terms' own name, the page that holds it, and when the user accepted it (ISO 8601), if asked."""

    id: str
    url: str | None = None
    accepted_at: str | None = None


@dataclass(frozen=True)
class Fidelity:
    """How the bundle answers beside its checkpoint. KL in nats per token; shares in 0..1; perplexities are exp(mean NLL).

    The word error rates are of speech models alone: errors over the words said, the bundle's and the checkpoint's.
    """

    n_tokens: int
    kl_mean: float
    kl_p99: float
    top1_agreement: float
    perplexity: float
    reference_perplexity: float
    max_abs_logit_error: float
    greedy_tokens_equal: int
    greedy_tokens_compared: int
    verdict: str  # "pass" | "fail" | "reported" | "not verified"
    gates: dict[str, float] = field(default_factory=dict)
    word_error_rate: float | None = None
    reference_word_error_rate: float | None = None

    @property
    def perplexity_ratio(self) -> float:
        return self.perplexity / self.reference_perplexity

    @property
    def word_error_rate_increase(self) -> float:
        """What the bundle gets wrong beyond its checkpoint; NaN where no speech was measured, so that no gate holds."""
        if self.word_error_rate is None or self.reference_word_error_rate is None:
            return math.nan
        return self.word_error_rate - self.reference_word_error_rate


@dataclass(frozen=True)
class Manifest:
    """Everything a runtime must know before it opens a native file."""

    name: str
    target: str  # "litert" | "mlx" | "onnx" | "gguf"
    recipe: dict[str, Any]  # the recipe as data, and what this target made of it
    spec: dict[str, Any]  # ModelSpec as data
    source: SourceRecord
    license: LicenseRecord
    context_length: int
    chat: bool
    chat_template: str | None
    tokenizer: dict[str, Any]  # {"kind": "sentencepiece" | "huggingface", "verified_texts": n, ...}
    stop_token_ids: tuple[int, ...]
    bits_per_weight: float
    files: tuple[FileRecord, ...]
    tools: dict[str, str]  # distribution -> version that wrote the bundle
    created_at: str
    memory: dict[str, Any] = field(default_factory=dict)  # parts of the memory model, bytes
    fidelity: Fidelity | None = None
    entry: str = ""  # the file an engine opens, one of `files`
    conversion_key: str = ""  # hash of checkpoint, target, recipe, options and tools: the same key means the same bundle
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Read what `to_json` wrote, checking every field.

        Raises:
            FormatError: It is damaged, from a newer version, or says something impossible.
        """
        from toolkit.manifest_reader import read_manifest

        return read_manifest(text)

    def to_json(self) -> str:
        """The text of manifest.json, with its own SHA-256 in `manifest_sha256` (see `seal_of`).

        A fidelity figure that is not finite becomes null, which JSON can say; it is read back as NaN.

        Raises:
            ValueError: Any other number is NaN or infinite.
        """
        data = {**asdict(self), SEAL_FIELD: EMPTY_SEAL}
        if self.fidelity is not None:
            data["fidelity"] = {name: value if _is_sayable(value) else None for name, value in data["fidelity"].items()}
        text = json.dumps(data, indent=2, ensure_ascii=False, sort_keys=True, allow_nan=False) + "\n"
        return text.replace(f'"{SEAL_FIELD}": "{EMPTY_SEAL}"', f'"{SEAL_FIELD}": "{seal_of(text, EMPTY_SEAL)}"')


def _is_sayable(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def seal_of(text: str, seal: str) -> str:
    """SHA-256 in hex of a manifest's UTF-8 text with its `manifest_sha256`, now `seal`, replaced by 64 zeros.

    So every byte of the file is covered, and a flipped one is found even where it leaves good JSON behind.
    """
    return hashlib.sha256(text.replace(f'"{seal}"', f'"{EMPTY_SEAL}"').encode()).hexdigest()
