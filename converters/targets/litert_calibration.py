"""Calibration as a stage of its own: found once for a checkpoint and the rules, taken up again after an interrupt."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.calibration.found import FACTS_NAME, Found
from converters.child import run_in_child
from converters.corpus import documents, windows
from converters.stages import key_of
from converters.targets.litert_plan import matrix_rules, promotion_budget_bits

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.recipe import Recipe

WINDOW = 256
FORMAT_MODULE = "converters.targets.litert_grid"
# Named like a quantized stage, so that it stays after an interrupt and goes when the conversion is done.
STAGE_NAME = "quantized-calibration"


def calibrated(checkpoint: Checkpoint, recipe: Recipe, scratch: Path) -> Found:
    """What calibration finds for a recipe on a checkpoint: from the work folder, or worked out in a child process.

    Args:
        checkpoint: Its float32 Hugging Face directory is written into `scratch`.
        recipe: With GPTQ rules or a promotion.
        scratch: An empty folder inside a stage that is being built; two levels up is the checkpoint's work folder.

    Raises:
        ToolkitError: transformers cannot run the checkpoint, or memory ran out.
    """
    rules = {name: asdict(rule) for name, rule in matrix_rules(checkpoint, recipe).items()}
    budget_bits = promotion_budget_bits(checkpoint, recipe)
    texts = [document.text for document in documents("calibration")]
    place = scratch.parents[1] / f"{STAGE_NAME}-{key_of(checkpoint.content_hash, rules, budget_bits, texts, WINDOW)[:16]}"
    if not (place / FACTS_NAME).is_file():
        _work_out(checkpoint, recipe, {"rules": rules, "budget_bits": budget_bits}, place, scratch)
    return Found.read(place)


def _work_out(checkpoint: Checkpoint, recipe: Recipe, asked: dict[str, Any], place: Path, scratch: Path) -> None:
    hf_dir, building = scratch / "checkpoint", place.with_name(f"{place.name}.{os.getpid()}.building")
    building.mkdir()
    try:
        checkpoint.write_hf(hf_dir)
        length = min(WINDOW, checkpoint.spec.max_context_length)
        arguments = {
            **asked,
            "hf_dir": str(hf_dir),
            "spec": checkpoint.spec.as_dict(),
            "windows": [list(window) for window in _all_windows(hf_dir, length)],
            "format_module": FORMAT_MODULE,
            "out": str(building),
        }
        run_in_child("converters.calibration.calibrate:calibrate", arguments, what=f"calibrate {recipe.name} on {checkpoint.name}")
        shutil.rmtree(place, ignore_errors=True)
        building.rename(place)
    finally:
        shutil.rmtree(building, ignore_errors=True)
        shutil.rmtree(hf_dir, ignore_errors=True)


def _all_windows(hf_dir: Path, length: int) -> tuple[tuple[int, ...], ...]:
    """Every window of the calibration texts, languages in turn, as many of one as of the other while both last."""
    n_windows = 1
    while True:
        try:
            found = windows(hf_dir, n_tokens=(n_windows + 1) * length, window=length, purpose="calibration")
        except ValueError:
            return windows(hf_dir, n_tokens=n_windows * length, window=length, purpose="calibration")
        n_windows = len(found)
