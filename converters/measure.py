"""Measuring a written model in a process of its own, and judging the figures by the gates; for text and speech alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from converters.child import run_in_child
from converters.gates import verdict
from toolkit.manifest import Fidelity

if TYPE_CHECKING:
    from converters.targets.base import Target


def measure_in_child(entry: str, target: Target, model_path: Path, reference_folder: Path, gates: Mapping[str, float]) -> Fidelity:
    """What `entry` measures of a written model beside the checkpoint's kept answers, with the verdict.

    Args:
        entry: `module:function`; takes target_name, model and reference_folder, returns the figures of `Fidelity`.
        target: Whose runtime answers.
        model_path: The written model.
        reference_folder: Where the checkpoint's answers lie.
        gates: Figure to limit.

    Raises:
        ToolkitError: The target's runtime refuses the file, or dies on it.
    """
    arguments = {"target_name": target.name, "model": str(model_path), "reference_folder": str(reference_folder)}
    figures = run_in_child(entry, arguments, what=f"measure the {target.name} model")
    fidelity = Fidelity(**figures, verdict="reported", gates=dict(gates))
    return replace(fidelity, verdict=verdict(fidelity, gates))
