"""The rooms a conversion passes through, named once so that each can be replaced: reader, targets, verifier, cache."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from converters.resources import FreeMemory, free_memory, hard_limit
from converters.targets import load_target
from toolkit.bundle import SPEECH_MODEL_TYPE
from toolkit.manifest import Fidelity

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.targets.base import Target
    from converters.whisper_spec import WhisperSpec


class Verifier(Protocol):
    """Measures a native model against its checkpoint; `converters.verify` is one."""

    def reference(self, checkpoint: Checkpoint, hf_dir: Callable[[], Path], cache: Path) -> Any:
        """The checkpoint's own answers on the verification texts, computed once and kept under `cache`.

        `hf_dir` writes the checkpoint in float32, or finds it written; it is called only when there is something to compute.
        """

    def measure(self, target: Target, model_path: Path, reference: Any, gates: Mapping[str, float]) -> Fidelity:
        """The figures of one native model beside the reference."""


@dataclass(frozen=True)
class Parts:
    """What `convert` is made of."""

    read_checkpoint: Callable[[str, str | None, str | None], Checkpoint]
    load_target: Callable[[str], Target]
    load_verifier: Callable[[], Verifier]
    work_root: Callable[[], Path]
    reference_bytes: Callable[[Checkpoint], int]
    free_memory: Callable[[], FreeMemory] = free_memory
    hard_limit: Callable[[], FreeMemory | None] = hard_limit
    n_at_once: int = 1  # recipes in work at the same time where memory allows


def default_parts() -> Parts:
    """The project's own parts; each is imported on use."""
    return Parts(_read_checkpoint, load_target, _load_verifier, _work_root, _reference_bytes, n_at_once=2)


def _read_checkpoint(source: str, name: str | None, accept_license: str | None) -> Checkpoint:
    from converters.read import read_checkpoint

    return read_checkpoint(source, name=name, accept_license=accept_license)


def _load_verifier() -> Verifier:
    return cast(Verifier, importlib.import_module("converters.verify"))


def _reference_bytes(checkpoint: Checkpoint) -> int:
    """What the checkpoint's answers take on disk: float32 logits of every verification token, or of what recordings say."""
    from converters.verify import N_TOKENS

    if checkpoint.spec.model_type == SPEECH_MODEL_TYPE:
        from converters.verify_speech import speech_reference_bytes

        return speech_reference_bytes(cast("WhisperSpec", checkpoint.spec))
    return 4 * N_TOKENS * checkpoint.spec.vocab_size


def _work_root() -> Path:
    from toolkit.cache import cache_directory

    return cache_directory("convert")
