"""A host for one faulty bundle: opens it without the hash check, asks for eight tokens, prints what happened in one line.

    python -m benchmarks.fault_host BUNDLE

`faults` runs it as a child, so that a death of the host is seen and counted instead of ending the count.
"""

from __future__ import annotations

import sys
from pathlib import Path

from toolkit import Bundle, Engine
from toolkit.errors import ToolkitError
from toolkit.manifest_reader import load_manifest
from toolkit.worker_death import EngineCrashed
from toolkit.worker_watch import WorkerLimits

PROMPT = "The inspector walked along the line and wrote down"
WITHOUT_CAUSE = "without a cause"
_LIMITS = WorkerLimits(start_s=120, silence_s=20, stall_s=30)


def outcome(folder: Path) -> str:
    """Open and ask; what came of it in a few words."""
    bundle = Bundle(folder, load_manifest(folder))
    try:
        with (
            Engine.open(bundle, context_length=256, limits=_LIMITS, isolated=True, force=True) as engine,
            engine.plain_session() as session,
        ):
            for _ in session.send(PROMPT, max_tokens=8):
                pass
        return "answered"
    except EngineCrashed as crash:
        return f"crashed: {crash.cause.value}" if crash.why and crash.last_event else WITHOUT_CAUSE
    except ToolkitError as error:
        return "refused by the engine" if error.what and error.why else WITHOUT_CAUSE


if __name__ == "__main__":
    print(outcome(Path(sys.argv[1])))
