"""What a bundle takes to load and to run: one fresh process for each figure, weights cache cold and warm.

    python -m benchmarks.model_memory BUNDLE... [--rounds 5] [--jobs 384,1280] [--json]

A job of N tokens is a prompt of N - 64 and an answer of 64, with the KV cache that `toolkit run` would open for it. Peak RSS is
VmHWM of the process; the split into anonymous (the process's own) and mapped (files the system can drop) is read after the answer.
"cold": an empty cache folder, so hashes are computed and weights repacked; "warm": the next process with that folder. load_s holds
checking and opening.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Report, Target, parser, run, say, token_counts
from benchmarks.probe_run import Job, run_probe
from toolkit.bench_summary import interleaved
from toolkit.bundle import Bundle

ANSWER_TOKENS = 64
LOAD_TARGETS = {"gemma-3-270m-litert-int4-g32": Target("at most", 0.6)}
MEMORY_TARGETS = {
    ("gemma-3-270m-litert-int4-g32", 384): Target("at most", 380e6),
    ("gemma-3-270m-litert-int4-g32", 1280): Target("at most", 500e6),
}


def flat(figures: dict[str, Any]) -> dict[str, float]:
    """The figures of one child by the name they are printed under."""
    answer = figures["answers"][0]
    return {
        "load_s": figures["load_s"],
        "open_s": figures["open_s"],
        "peak_rss_bytes": max(figures["peak_rss_bytes"], figures["answered"]["rss_bytes"]),
        "loaded_rss_bytes": figures["loaded"]["rss_bytes"],
        "anonymous_bytes": figures["answered"]["anonymous_bytes"],
        "mapped_bytes": figures["answered"]["mapped_bytes"],
        "ttft_s": answer["ttft_s"],
        "decode_tokens_per_s": answer["decode_tokens_per_s"],
    }


def measure(args: argparse.Namespace) -> Report:
    bundles = {bundle.name: bundle.path for bundle in map(Bundle.open, args.bundles)}
    jobs = token_counts(args.jobs, "--jobs", at_least=ANSWER_TOKENS + 1)
    report = Report(
        "model_memory",
        {"bundles": list(bundles), "jobs": jobs, "rounds": args.rounds, "threads": args.threads, "in_process": args.in_process},
    )
    taken: dict[tuple[str, int, str], list[dict[str, float]]] = {}
    subjects = [f"{name} {n_tokens}" for name in bundles for n_tokens in jobs]
    with tempfile.TemporaryDirectory(prefix="model-memory-", dir=args.scratch) as scratch:
        for index, subject in interleaved(subjects, args.rounds):
            name, _, n_tokens = subject.rpartition(" ")
            job = Job(int(n_tokens) - ANSWER_TOKENS, ANSWER_TOKENS, args.threads, in_process=args.in_process)
            cache = Path(scratch) / "cache"
            for heat in ("cold", "warm"):
                figures, _ = run_probe(bundles[name], job, cache=cache)
                taken.setdefault((name, int(n_tokens), heat), []).append(flat(figures))
            shutil.rmtree(cache)
            say(f"round {index + 1} of {args.rounds}: {subject} tokens")
    for (name, length, heat), rounds in sorted(taken.items()):
        for figure in rounds[0]:
            target = _target(name, length, figure) if heat == "warm" else None
            report.add(f"{name}, {length} tokens, {heat}", figure, [values[figure] for values in rounds], target)
    return report


def _target(name: str, n_tokens: int, figure: str) -> Target | None:
    if figure == "load_s":
        return LOAD_TARGETS.get(name)
    return MEMORY_TARGETS.get((name, n_tokens)) if figure == "peak_rss_bytes" else None


def main() -> int:
    """Run the command; returns the exit code."""
    options = parser(__doc__)
    options.add_argument("bundles", metavar="BUNDLE", nargs="+", help="folders that `convert` wrote")
    options.add_argument("--rounds", type=int, default=5, metavar="N", help="processes of each kind (default: 5)")
    options.add_argument("--jobs", default="384,1280", metavar="N,N", help="tokens of the jobs (default: 384,1280)")
    options.add_argument("--threads", type=int, default=2, metavar="N", help="default: 2")
    options.add_argument("--in-process", action="store_true", help="the engine in the job's process, not in one of its own")
    options.add_argument("--scratch", metavar="DIR", type=Path, help="where caches go (default: the system's temporary folder)")
    return run(measure, options.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
