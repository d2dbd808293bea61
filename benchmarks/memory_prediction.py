"""Does the memory model hold? Peak RSS as predicted from a bundle's manifest beside the peak of a process that runs it.

    python -m benchmarks.memory_prediction BUNDLE... [--contexts 384,1024,1536] [--rounds 1] [--json]

A bundle whose manifest has no measurements is measured first, as `convert` does it, at two contexts that are not judged here. Each
context is filled by a prompt in a fresh process: once as the first start (the engine packs its weights), then with packed weights.
"arithmetic" is the same prediction without any measurement of the bundle; it is printed beside, without a target.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import Report, Target, parser, run, say, token_counts
from toolkit.calibration import MemoryRun, read_calibration
from toolkit.manifest import Manifest
from toolkit.manifest_reader import load_manifest
from toolkit.measure_memory import measure_memory, run_once
from toolkit.memory import estimate_memory

TOO_LOW, TOO_HIGH = Target("at least", 0.95), Target("at most", 1.10)


def calibrated(folder: Path, threads: int) -> Manifest:
    """The bundle's manifest with measurements."""
    manifest = load_manifest(folder)
    if read_calibration(manifest) is not None:
        return manifest
    say(f"measuring {folder.name} as convert does")
    return replace(manifest, memory={**manifest.memory, **measure_memory(folder, threads=threads)})


def measure(args: argparse.Namespace) -> Report:
    folders = [Path(name) for name in args.bundles]
    names = [folder.resolve().name for folder in folders]
    contexts = token_counts(args.contexts, "--contexts", at_least=64)
    report = Report("memory_prediction", {"bundles": names, "contexts": contexts, "rounds": args.rounds, "threads": args.threads})
    for folder, name in zip(folders, names, strict=True):
        manifest = calibrated(folder, args.threads)
        report.details[name] = manifest.memory
        plain = replace(manifest, memory={key: value for key, value in manifest.memory.items() if key != "measured"})
        for context in contexts:
            if context > manifest.context_length:
                report.skipped[f"{name}, {context} tokens"] = f"it was converted for {manifest.context_length}"
                continue
            runs = _runs(folder, context, args)
            for is_first, taken in runs.items():
                subject = f"{name}, {context} tokens, {'first start' if is_first else 'later'}"
                predicted = estimate_memory(manifest, context_length=context, is_first_start=is_first).peak_rss_bytes
                arithmetic = estimate_memory(plain, context_length=context, is_first_start=is_first).peak_rss_bytes
                peaks = [each.peak_rss_bytes for each in taken]
                report.add(subject, "peak_rss_bytes", peaks)
                report.add(subject, "predicted_bytes", [predicted])
                report.add(subject, "predicted_low_ratio", [predicted / peak for peak in peaks], TOO_LOW)
                report.add(subject, "predicted_high_ratio", [predicted / peak for peak in peaks], TOO_HIGH)
                report.add(subject, "arithmetic_ratio", [arithmetic / peak for peak in peaks])
            say(f"{name}: {context} tokens")
    return report


def _runs(folder: Path, context: int, args: argparse.Namespace) -> dict[bool, list[MemoryRun]]:
    """First starts and later ones, `rounds` of each."""
    runs: dict[bool, list[MemoryRun]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="memory-prediction-", dir=args.scratch) as scratch:
        for _ in range(args.rounds):
            cache = Path(scratch) / "cache"
            for is_first in (True, False):
                runs[is_first].append(run_once(folder, context, threads=args.threads, cache=cache, is_first_start=is_first))
            shutil.rmtree(cache)
    return runs


def main() -> int:
    """Run the command; returns the exit code."""
    options = parser(__doc__)
    options.add_argument("bundles", metavar="BUNDLE", nargs="+", help="folders that `convert` wrote")
    options.add_argument("--contexts", default="384,1024,1536", metavar="N,N", help="context lengths (default: 384,1024,1536)")
    options.add_argument("--rounds", type=int, default=1, metavar="N", help="processes of each kind (default: 1)")
    options.add_argument("--threads", type=int, default=2, metavar="N", help="default: 2")
    options.add_argument("--scratch", metavar="DIR", type=Path, help="where caches go (default: the system's temporary folder)")
    return run(measure, options.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
