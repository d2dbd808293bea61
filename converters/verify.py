"""Fidelity: a written model beside its checkpoint, on the same tokens, through the target's own runtime.

Both sides run in child processes: the checkpoint once (its answers are kept), every written model once.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from converters.child import run_in_child
from converters.divergence import Divergence
from converters.lock import hold
from converters.measure import measure_in_child
from converters.reference import N_GREEDY_TOKENS, Reference, open_reference
from converters.speech_reference import SpeechReference
from converters.verify_speech import measure_speech, speech_reference
from toolkit.bundle import SPEECH_MODEL_TYPE
from toolkit.errors import FormatError
from toolkit.manifest import Fidelity

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.speech_checkpoint import SpeechCheckpoint
    from converters.targets.base import Target

N_TOKENS = 2048
WINDOW = 512
N_PROMPT_TOKENS = 32


def reference(checkpoint: Checkpoint, hf_dir: Callable[[], Path], cache: Path) -> Reference | SpeechReference:
    """The checkpoint's logits on the verification texts; computed once for a checkpoint and these texts.

    Args:
        checkpoint: Decides how long a window may be.
        hf_dir: Gives its weights in float32, as transformers loads them; called only when something is to be computed.
        cache: Folder that belongs to this checkpoint's content hash.

    Raises:
        ToolkitError: transformers cannot run the checkpoint.
    """
    if checkpoint.spec.model_type == SPEECH_MODEL_TYPE:
        return speech_reference(cast("SpeechCheckpoint", checkpoint), hf_dir, cache)
    from converters.corpus import documents, windows

    length = min(WINDOW, checkpoint.spec.max_context_length)
    texts = [document.text for document in documents("verification")]
    digest = hashlib.sha256(json.dumps([texts, N_TOKENS, length, N_PROMPT_TOKENS, N_GREEDY_TOKENS]).encode()).hexdigest()[:16]
    folder = cache / f"texts-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    known = open_reference(folder, full_check=True)
    if known is None:
        for leftover in folder.glob(".*"):  # of a run that was killed
            leftover.unlink()
        place = hf_dir()
        asked = [list(window) for window in windows(place, n_tokens=N_TOKENS, window=length)]
        arguments = {"hf_dir": str(place), "folder": str(folder), "windows": asked, "prompt_ids": asked[0][:N_PROMPT_TOKENS]}
        run_in_child("converters.reference:compute_reference", arguments, what=f"run the checkpoint {checkpoint.name}")
        known = open_reference(folder)
        assert known is not None, "compute_reference left no whole reference"
    return known


def verify_bundle(path: Path) -> Fidelity:
    """Measure a published bundle again, against the checkpoint its manifest names.

    Its reference is taken from the cache when it is still there, computed again otherwise.

    Raises:
        FormatError: The bundle is damaged, or its source is no longer what it was made from.
        ToolkitError: The source cannot be had, or a runtime fails.
    """
    from converters.read import read_checkpoint
    from converters.targets import load_target, suited
    from toolkit.bundle import Bundle
    from toolkit.cache import cache_directory

    bundle = Bundle.open(path)
    manifest = bundle.manifest
    checkpoint = read_checkpoint(manifest.source.uri, name=manifest.name)
    if checkpoint.source.sha256 != manifest.source.sha256:
        raise FormatError(
            f"{manifest.name} cannot be measured against {manifest.source.uri}",
            why="its files have other hashes than those the bundle was made from",
            fix="get the revision the manifest names, or convert again",
        )
    work = cache_directory("convert", checkpoint.content_hash[:32])
    cache = cache_directory("convert", checkpoint.content_hash[:32], "reference")
    target = suited(load_target(manifest.target), checkpoint.spec.model_type)
    with tempfile.TemporaryDirectory(prefix="verify-", dir=work) as scratch:

        def hf_dir() -> Path:
            checkpoint.write_hf(Path(scratch) / "checkpoint")
            return Path(scratch) / "checkpoint"

        with hold(work / "reference.lock"):
            known = reference(checkpoint, hf_dir, cache)
        model = target.extract_model(bundle.path / manifest.entry, Path(scratch))
        gates = manifest.fidelity.gates if manifest.fidelity else manifest.recipe.get("gates", {})
        return measure(target, model, known, gates)


def measure(target: Target, model_path: Path, reference: Reference | SpeechReference, gates: Mapping[str, float]) -> Fidelity:
    """Run a written model over the reference's windows and prompt, and judge the figures by the gates.

    Raises:
        ToolkitError: The target's runtime refuses the file, or dies on it.
    """
    if isinstance(reference, SpeechReference):
        return measure_speech(target, model_path, reference, gates)
    return measure_in_child("converters.verify:measure_here", target, model_path, reference.folder, gates)


def measure_here(target_name: str, model: str, reference_folder: str) -> dict[str, Any]:
    """The figures of `Fidelity` but verdict and gates, measured in this process."""
    from converters.targets import load_target

    known = open_reference(Path(reference_folder))
    assert known is not None, "the reference went away while it was in use"
    scorer = load_target(target_name).open_scorer(Path(model))
    divergence = Divergence()
    for index, window in enumerate(known.windows):
        next_ids = np.array([*window[1:], -1], dtype=np.int64)
        divergence.add_blocks(scorer.score(window), partial(known.rows, index), next_ids, f"window {index}")
    n_equal = scorer.count_greedy_equal(known.prompt_ids, known.greedy_ids) if known.greedy_ids else 0
    return {**divergence.figures(), "greedy_tokens_equal": n_equal, "greedy_tokens_compared": len(known.greedy_ids)}
