"""Calibration as a stage of its own: found once for a checkpoint and the rules, taken up again after an interrupt."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.calibration.found import Found
from converters.child import run_in_child
from converters.corpus import documents, windows
from converters.stages import Stage, key_of
from converters.targets.litert_plan import matrix_rules, promotion_budget_bits

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.recipe import Recipe
    from converters.targets.base import Workshop

WINDOW = 256
FORMAT_MODULE = "converters.targets.litert_grid"


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


def _all_windows(hf_dir: Path, length: int) -> tuple[tuple[int, ...], ...]:
    """Every window of the calibration texts, languages in turn, as many of one as of the other while both last."""
    n_windows = 1
    while True:
        try:
            found = windows(hf_dir, n_tokens=(n_windows + 1) * length, window=length, purpose="calibration")
        except ValueError:
            return windows(hf_dir, n_tokens=n_windows * length, window=length, purpose="calibration")
        n_windows = len(found)
