"""What a bundle takes to run, measured before it is sealed, so that `toolkit plan` need not rely on arithmetic alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from converters.progress import Progress
from toolkit.errors import ToolkitError
from toolkit.manifest import Manifest
from toolkit.measure_memory import can_measure, measure_memory


def memory_figures(folder: Path, manifest: Manifest, progress: Progress) -> dict[str, Any]:
    """`memory` of a manifest, with what three runs of the native files took where an engine here opens them.

    A bundle that was not measured is as good as any other, only planned for more roughly: a failure is a note, never the
    conversion's.

    Args:
        folder: The native files, not sealed yet.
        manifest: What their manifest is going to say.
        progress: Shows the stage, and gets the note.
    """
    if not can_measure(manifest):
        return manifest.memory
    try:
        with progress.stage(f"{manifest.target}: measuring the memory of {manifest.recipe['name']}"):
            return {**manifest.memory, **measure_memory(folder, manifest)}
    except (ToolkitError, OSError, ValueError) as error:
        said = ": ".join(filter(None, (error.what, error.why))) if isinstance(error, ToolkitError) else str(error)
        progress.note(f"the plan of this bundle will rest on arithmetic alone: {said}")
        return manifest.memory
