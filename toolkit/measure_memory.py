"""Measures what a bundle takes to run, for the memory model: fresh processes, two contexts, the first start apart.

    python -m toolkit.measure_memory BUNDLE CONTEXT[,CONTEXT...] THREADS      a run for each, printed as a line of JSON

The fields: docs/formats/memory.md.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from toolkit.backends import backend_for
from toolkit.bench_prompt import longest_prompt
from toolkit.bundle import SPEECH_MODEL_TYPE
from toolkit.cache import CACHE_VARIABLE, cache_directory
from toolkit.calibration import MemoryRun
from toolkit.device.profile import probe_device
from toolkit.errors import BackendUnavailableError, EngineError, ToolkitError
from toolkit.helper_processes import status_bytes
from toolkit.limits import usable_threads
from toolkit.manifest import MANIFEST_NAME, FileRecord, Manifest
from toolkit.manifest_reader import load_manifest
from toolkit.target_support import targets_for

# The peak grows with the context in a straight line: what these two say of 2,048 tokens is within 1 % of it (SmolLM2 fp32 and int8,
# Gemma 3 270M int8 and int4-g32, on LiteRT), and filling 512 and 2,048 tokens took twice as long.
SHORT_CONTEXT, LONG_CONTEXT = 256, 1024
ANSWER_TOKENS = 8
_FIELDS = {"VmHWM": "peak_rss_bytes", "RssAnon": "anonymous_bytes", "RssFile": "mapped_bytes", "VmPeak": "address_space_bytes"}
_LIMIT_S = 900.0


def measure_memory(bundle_dir: Path, manifest: Manifest | None = None, *, threads: int | None = None) -> dict[str, Any]:
    """Three runs of a bundle: its first start, the same context again, and a longer one.

    Args:
        bundle_dir: A bundle; or, with `manifest`, a folder of native files that is not sealed yet.
        manifest: What its manifest.json will say; None reads the folder's.
        threads: CPU threads, which hardly change memory; None: 2, or 1 on a machine with one CPU.

    Returns:
        `{"measured": {...}}`, to be merged into the manifest's `memory`; empty where it cannot be measured, see `can_measure`, or
        the engine is not installed.

    Raises:
        EngineError: A run failed, or it does not fit into memory; the text holds its last lines.
        BudgetError, UsageError: The cache folder cannot be written to.
    """
    threads, said = threads or min(2, usable_threads()), manifest or load_manifest(bundle_dir)
    if not can_measure(said):
        return {}
    long = min(LONG_CONTEXT, said.context_length)
    short = min(SHORT_CONTEXT, long // 2)
    with _scratch() as scratch:
        folder = bundle_dir if manifest is None else _stand_in(bundle_dir, manifest, scratch / "bundle")
        try:
            facts = _run(folder, said.name, [short, short, long], threads=threads, cache=scratch / "cache")
        except BackendUnavailableError:
            return {}
    order = zip((short, short, long), (True, False, False), facts, strict=True)
    runs = [asdict(MemoryRun(context_length=length, is_first_start=is_first, **fact)) for length, is_first, fact in order]
    return {"measured": {"machine": platform.machine(), "threads": threads, "runs": runs}}


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder of this measurement's own. One that was killed left its copy of the weights behind: that goes here."""
    place = cache_directory("measuring")
    for left in place.iterdir():
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > 2 * _LIMIT_S:  # none runs for so long
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        yield Path(scratch)


def can_measure(manifest: Manifest) -> bool:
    """Whether there is a way to: the system tells what a process takes (/proc), and a backend answers prompts with such a bundle.

    MLX is measured on Apple's chips alone, which have no /proc: a CPU reads its packed weights a token a second, and holds other things.
    """
    if not Path("/proc/self/status").exists() or manifest.spec.get("model_type") == SPEECH_MODEL_TYPE:  # it has no context to fill
        return False
    try:
        backend_for(manifest.target)
    except BackendUnavailableError:
        return False
    return manifest.target in targets_for(probe_device())


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
    name = load_manifest(folder).name
    [facts] = _run(folder, name, [context_length], threads=threads, cache=cache)
    return MemoryRun(context_length=context_length, is_first_start=is_first_start, **facts)


def _run(folder: Path, name: str, lengths: Sequence[int], *, threads: int, cache: Path) -> list[dict[str, int]]:
    """Fill one context after the other, each in a fresh engine's process, all started by one that has the cache."""
    command = [sys.executable, "-m", "toolkit.measure_memory", str(folder), ",".join(map(str, lengths)), str(threads)]
    root = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, CACHE_VARIABLE: str(cache), "PYTHONPATH": paths}
    what = f"the memory of {name} cannot be measured"
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_LIMIT_S, check=False, errors="replace")
    except subprocess.TimeoutExpired as error:
        fix = "measure it on a faster machine, or leave it out: convert --no-verify"
        raise EngineError(what, why=f"it took longer than {_LIMIT_S:g} s", fix=fix) from error
    facts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == BackendUnavailableError.exit_code:
        raise BackendUnavailableError(what, why=_last_lines(done), fix="see what is missing: toolkit doctor")
    if done.returncode or len(facts) != len(lengths):
        length = lengths[min(len(facts), len(lengths) - 1)]
        fix = f'see what the engine says: toolkit run BUNDLE "hello" --context {length}'
        raise EngineError(f"{what} at {length} tokens", why=_last_lines(done), fix=fix)
    return facts


def _last_lines(done: subprocess.CompletedProcess[str]) -> str:
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return " | ".join(said[-3:]) or f"the process ended with exit code {done.returncode}"


def _fill(folder: Path, context_length: int, threads: int) -> dict[str, int]:
    """Open the bundle in an engine's own process, fill its context, and read that process."""
    from toolkit.bundle import Bundle
    from toolkit.engine import Engine
    from toolkit.worker_proxy import RemoteEngine

    bundle = Bundle.unchecked(folder)  # its hashes are not what is measured
    with Engine.open(bundle, context_length=context_length, threads=threads, isolated=True) as engine:
        native = engine.native
        assert isinstance(native, RemoteEngine)
        prompt = longest_prompt(lambda text: len(engine.tokenize(text)) + native.n_start_tokens, context_length - ANSWER_TOKENS)
        with engine.plain_session() as session:
            for _ in session.send(prompt, max_tokens=ANSWER_TOKENS):
                pass
        sizes = status_bytes(native.worker.pid)
    return {field: sizes[name] for name, field in _FIELDS.items()}


def _main(folder: Path, lengths: Sequence[int], threads: int) -> int:
    try:
        for length in lengths:
            print(json.dumps(_fill(folder, length, threads)), flush=True)
    except ToolkitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), [int(length) for length in sys.argv[2].split(",")], int(sys.argv[3])))
