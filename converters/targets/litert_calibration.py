"""Calibration as a stage of its own: found once for a checkpoint and the rules, taken up again after an interrupt."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.calibration.found import Found
from converters.child import run_in_child
from converters.corpus import documents, windows
from converters.stages import Stage, key_of
from converters.targets.litert_plan import matrix_rules, promotion_budget_bits, scales_channels

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.recipe import Recipe
    from converters.targets.base import Workshop

WINDOW = 256
FORMAT_MODULE = "converters.targets.litert_grid"
# Peak RSS of calibrating Gemma 3 270M with GPTQ: 4.82 * 10^9 bytes of the child and 0.55 * 10^9 of this process, for which these
# make 5.5: both interpreters, the float model, the codes found so far, and four float32 arrays the size of the largest matrix
# while its scales are searched for.
BASE_BYTES = 1300 * 2**20
BYTES_PER_WEIGHT = 4 + 1.25
SEARCH_BYTES_PER_VALUE = 4 * 4
N_TOKENS = 3072  # the texts' in a common vocabulary, all in flight at once


def calibrated(checkpoint: Checkpoint, recipe: Recipe, workshop: Workshop) -> Found:
    """What calibration finds for a recipe on a checkpoint, worked out in a child process or kept from before.

    Raises:
        ToolkitError: transformers cannot run the checkpoint, or memory ran out.
    """
    asked: dict[str, Any] = {
        "rules": {name: asdict(rule) for name, rule in matrix_rules(checkpoint, recipe).items()},
        "budget_bits": promotion_budget_bits(checkpoint, recipe),
    }
    texts = [document.text for document in documents("calibration")]

    def build(folder: Path) -> Path:
        hf_dir = workshop.hf_dir()
        arguments = {
            **asked,
            "hf_dir": str(hf_dir),
            "spec": checkpoint.spec.as_dict(),
            "windows": [list(window) for window in _all_windows(hf_dir, min(WINDOW, checkpoint.spec.max_context_length))],
            "format_module": FORMAT_MODULE,
            "out": str(folder / "found"),
        }
        (folder / "found").mkdir()
        run_in_child("converters.calibration.calibrate:calibrate", arguments, what=f"calibrate {recipe.name} on {checkpoint.name}")
        return folder / "found"

    key = key_of("calibrated", checkpoint.content_hash, asked, texts, WINDOW)
    return Found.read(workshop.run_stage(Stage("calibrated-litert", key, f"litert: calibrating for {recipe.name}", build)))


def peak_bytes(checkpoint: Checkpoint, recipe: Recipe) -> int:
    """Peak RSS while a recipe is calibrated, this process included; 0 where nothing is."""
    spec = checkpoint.spec
    if not (recipe.is_calibrated or scales_channels(recipe, spec.model_type)):
        return 0
    largest = max(math.prod(shape) for shape in checkpoint.tensor_shapes().values())
    search = SEARCH_BYTES_PER_VALUE * largest if recipe.is_calibrated else 0  # channel scales are tried on a few rows
    activations = 4 * 4 * N_TOKENS * spec.intermediate_size
    return BASE_BYTES + int(BYTES_PER_WEIGHT * spec.n_parameters) + search + activations


def _all_windows(hf_dir: Path, length: int) -> tuple[tuple[int, ...], ...]:
    """Every window of the calibration texts, languages in turn, as many of one as of the other while both last."""
    n_windows = 1
    while True:
        try:
            found = windows(hf_dir, n_tokens=(n_windows + 1) * length, window=length, purpose="calibration")
        except ValueError:
            return windows(hf_dir, n_tokens=n_windows * length, window=length, purpose="calibration")
        n_windows = len(found)
