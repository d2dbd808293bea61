"""Measures what a bundle takes to run, for the memory model: fresh processes, two contexts, the first start apart.

    python -m toolkit.measure_memory BUNDLE CONTEXT THREADS      one run, printed as JSON

The fields: docs/formats/memory.md.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from toolkit.backends import backend_for
from toolkit.cache import CACHE_VARIABLE
from toolkit.calibration import MemoryRun
from toolkit.errors import BackendUnavailableError, EngineError
from toolkit.manifest import MANIFEST_NAME, FileRecord, Manifest
from toolkit.manifest_reader import load_manifest

SHORT_CONTEXT, LONG_CONTEXT = 512, 2048
ANSWER_TOKENS = 8
_WORDS = "The inspector walked along the line and wrote down what each pump, valve and gauge was doing that morning. "
_FIELDS = {"VmHWM": "peak_rss_bytes", "RssAnon": "anonymous_bytes", "RssFile": "mapped_bytes", "VmPeak": "address_space_bytes"}
_LIMIT_S = 1800.0


def measure_memory(bundle_dir: Path, manifest: Manifest | None = None, *, threads: int = 2) -> dict[str, Any]:
    """Three runs of a bundle: its first start, the same context again, and a longer one.

    Args:
        bundle_dir: A bundle; or, with `manifest`, a folder of native files that is not sealed yet.
        manifest: What its manifest.json will say; None reads the folder's.
        threads: CPU threads, which hardly change memory.

    Returns:
        `{"measured": {...}}`, to be merged into the manifest's `memory`; empty where the system does not tell (no /proc), and for
        a target no backend of this version runs.

    Raises:
        EngineError: A run failed; the text holds its last line.
    """
    if not Path("/proc/self/status").exists():
        return {}
    with tempfile.TemporaryDirectory(prefix="measure-memory-") as scratch:
        folder = bundle_dir
        if manifest is not None:
            folder = _stand_in(bundle_dir, manifest, Path(scratch) / "bundle")
        manifest = load_manifest(folder)
        if not _can_run(manifest.target):
            return {}
        long = min(LONG_CONTEXT, manifest.context_length)
        short = min(SHORT_CONTEXT, long // 2)
        cache = Path(scratch) / "cache"
        order = ((short, True), (short, False), (long, False))
        runs = [run_once(folder, length, threads=threads, cache=cache, is_first_start=first) for length, first in order]
    facts = {"machine": platform.machine(), "threads": threads, "runs": [asdict(run) for run in runs]}
    return {"measured": facts}


def _can_run(target: str) -> bool:
    try:
        backend_for(target)
    except BackendUnavailableError:
        return False
    return True


def _stand_in(files: Path, manifest: Manifest, folder: Path) -> Path:
    """A bundle of links to the files, with a manifest that claims their sizes; nobody checks its hashes."""
    folder.mkdir()
    paths = [path for path in sorted(files.rglob("*")) if path.is_file() and path.name != MANIFEST_NAME]
    for path in paths:
        link = folder / path.relative_to(files)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())
    records = tuple(FileRecord(path.relative_to(files).as_posix(), path.stat().st_size, "0" * 64) for path in paths)
    (folder / MANIFEST_NAME).write_text(replace(manifest, files=records).to_json(), encoding="utf-8")
    return folder


def run_once(folder: Path, context_length: int, *, threads: int, cache: Path, is_first_start: bool) -> MemoryRun:
    """Fill one context in a fresh process and read its memory.

    Args:
        folder: The bundle.
        context_length: Tokens.
        threads: CPU threads.
        cache: Where the engine keeps packed weights; empty for a first start.
        is_first_start: Whether this is one; only written down.

    Raises:
        EngineError: It failed.
    """
    command = [sys.executable, "-m", "toolkit.measure_memory", str(folder), str(context_length), str(threads)]
    root = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, CACHE_VARIABLE: str(cache), "PYTHONPATH": paths}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_LIMIT_S, check=False, errors="replace")
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"the memory of {folder.name} cannot be measured", why=str(error), fix="use a faster machine") from error
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise EngineError(
            f"the memory of {folder.name} cannot be measured at {context_length} tokens",
            why=" | ".join(said[-3:]) or f"the process ended with exit code {done.returncode}",
            fix=f"see what it says: {' '.join(command[1:])}",
        )
    return MemoryRun(context_length=context_length, is_first_start=is_first_start, **json.loads(done.stdout.splitlines()[-1]))


def _fill(folder: Path, context_length: int, threads: int) -> dict[str, int]:
    """Open the bundle in an engine's own process, fill its context, and read that process."""
    from toolkit.bundle import Bundle
    from toolkit.engine import Engine
    from toolkit.worker_proxy import RemoteEngine

    bundle = Bundle(folder, load_manifest(folder))  # its hashes are not what is measured
    with Engine.open(bundle, context_length=context_length, threads=threads, force=True, isolated=True) as engine:
        native = engine.native
        assert isinstance(native, RemoteEngine)
        n_words = max(1, (context_length - ANSWER_TOKENS - 8) // len(engine.tokenize(_WORDS)))
        with engine.plain_session() as session:
            for _ in session.send(_WORDS * n_words, max_tokens=ANSWER_TOKENS):
                pass
        status = Path(f"/proc/{native.worker.pid}/status").read_text(encoding="ascii", errors="replace")
    sizes = {line.partition(":")[0]: line.split()[1] for line in status.splitlines() if line.endswith(" kB")}
    return {field: 1024 * int(sizes[name]) for name, field in _FIELDS.items()}


if __name__ == "__main__":
    print(json.dumps(_fill(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
