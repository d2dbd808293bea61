"""Prefill and decode beside llama.cpp on the same weights: whole processes, turn by turn, the same threads.

    python -m benchmarks.decode_speed bundles/smollm2-135m-instruct-litert-int8 bundles/gemma-3-270m-litert-int8 [--rounds 5] [--json]

Decode is 64 tokens after 256, which llama-bench calls `-n 64 -d 256`; prefill is 256 tokens from an empty cache. llama.cpp reads the
GGUF file the bundle was converted from, found by its hash. Both sides warm up in each process, and tell their own rates. Without
llama.cpp our figures stand alone.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks.harness import Report, Target, paired_ratios, parser, run, say
from benchmarks.llama_bench import MISSING, find_llama_bench, run_llama_bench
from benchmarks.probe_run import Job, run_probe
from toolkit.bench_summary import interleaved
from toolkit.bundle import Bundle
from toolkit.catalog import load_catalog
from toolkit.errors import ToolkitError
from toolkit.fetch import fetch

PROMPT_TOKENS, ANSWER_TOKENS = 256, 64
OURS, PEER = "toolkit", "llama.cpp"
TARGETS = {"smollm2-135m-instruct-litert-int8": Target("at least", 1.2), "gemma-3-270m-litert-int8": Target("at least", 1.7)}


@dataclass(frozen=True)
class Taken:
    """One process: tokens per second, and its memory.

    Args:
        peak_rss_bytes: VmHWM of the process the engine runs in, on both sides: the host that asks beside it is none of the engine's.
        peak_pss_bytes: Of all processes together, a page they share counted once (`TreeRun`).
    """

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    peak_rss_bytes: float
    peak_pss_bytes: float


def gguf_of(bundle: Bundle) -> Path:
    """The GGUF file a bundle was converted from, fetched or found in the cache.

    Raises:
        ToolkitError: Its source is no GGUF file of the catalogue.
    """
    hashes = {sha256 for name, sha256 in bundle.manifest.source.sha256.items() if name.endswith(".gguf")}
    for model in load_catalog().models.values():
        if any(file.sha256 in hashes for source in model.sources for file in getattr(source, "files", ())):
            return fetch(model.name).path
    why = f"it was converted from {bundle.manifest.source.uri}"
    raise ToolkitError(f"no GGUF file for {bundle.name}", why=why, fix=f"name it: --gguf {bundle.name}=FILE")


def take_ours(bundle: Bundle, args: argparse.Namespace) -> Taken:
    job = Job(PROMPT_TOKENS, ANSWER_TOKENS, args.threads, repeats=args.repeats, warm_up=True)
    figures, cost = run_probe(bundle.path, job)
    rates = [[answer[name] for answer in figures["answers"]] for name in ("prefill_tokens_per_s", "decode_tokens_per_s")]
    return Taken(statistics.median(rates[0]), statistics.median(rates[1]), figures["peak_rss_bytes"], cost.peak_pss_bytes)


def take_peer(program: Path, gguf: Path, args: argparse.Namespace) -> tuple[Taken, str]:
    """One run of llama-bench and its build."""
    depths = (0, PROMPT_TOKENS)
    peer, cost = run_llama_bench(
        program, gguf, n_prompt=PROMPT_TOKENS, n_generated=ANSWER_TOKENS, depths=depths, threads=args.threads, repeats=args.repeats
    )
    prefill = statistics.median(peer.rates(n_prompt=PROMPT_TOKENS, n_depth=0))
    decode = statistics.median(peer.rates(n_generated=ANSWER_TOKENS, n_depth=PROMPT_TOKENS))
    return Taken(prefill, decode, cost.largest_process_rss_bytes, cost.peak_pss_bytes), peer.build


def measure(args: argparse.Namespace) -> Report:
    bundles = [Bundle.open(path) for path in args.bundles]
    settings = {"prompt_tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS, "rounds": args.rounds, "repeats": args.repeats}
    report = Report("decode_speed", settings | {"threads": args.threads, "bundles": [bundle.name for bundle in bundles]})
    program, ggufs = find_llama_bench(args.llama_bench), _given_ggufs(args.gguf)
    if program is None:
        report.skipped[PEER] = MISSING
    else:
        ggufs = {bundle.name: ggufs.get(bundle.name) or gguf_of(bundle) for bundle in bundles}
        report.details["gguf"] = {name: path.name for name, path in ggufs.items()}
    sides = {f"{bundle.name}, {OURS}": bundle for bundle in bundles}
    if program is not None:
        sides |= {f"{bundle.name}, {PEER}": bundle for bundle in bundles}
    taken: dict[str, list[Taken]] = {subject: [] for subject in sides}
    for index, subject in interleaved(sorted(sides), args.rounds):
        if program is None or subject.endswith(OURS):
            taken[subject].append(take_ours(sides[subject], args))
        else:
            peer, report.versions[PEER] = take_peer(program, ggufs[sides[subject].name], args)
            taken[subject].append(peer)
        say(f"round {index + 1} of {args.rounds}: {subject} decodes {taken[subject][-1].decode_tokens_per_s:.1f} tokens/s")
    _add_figures(report, bundles, taken)
    return report


def _add_figures(report: Report, bundles: list[Bundle], taken: dict[str, list[Taken]]) -> None:
    names = [each.name for each in fields(Taken)]
    for subject in sorted(taken):
        for name in names:
            report.add(subject, name, [getattr(one, name) for one in taken[subject]])
    for bundle in bundles:
        if (peers := taken.get(f"{bundle.name}, {PEER}")) is None:
            continue
        ours = taken[f"{bundle.name}, {OURS}"]
        for name, target in (("prefill", None), ("decode", TARGETS.get(bundle.name))):
            values = [[getattr(one, f"{name}_tokens_per_s") for one in side] for side in (ours, peers)]
            report.add(f"{bundle.name}, {OURS} / {PEER}", f"{name}_ratio", paired_ratios(values[0], values[1]), target)


def _given_ggufs(pairs: list[str]) -> dict[str, Path]:
    return {name: Path(path) for name, _, path in (pair.partition("=") for pair in pairs)}


def main() -> int:
    """Run the command; returns the exit code."""
    options = parser(__doc__)
    options.add_argument("bundles", metavar="BUNDLE", nargs="+", help="folders that `convert` wrote")
    options.add_argument("--rounds", type=int, default=5, metavar="N", help="processes of each side (default: 5)")
    options.add_argument("--repeats", type=int, default=3, metavar="N", help="answers a process, whose median counts (default: 3)")
    options.add_argument("--threads", type=int, default=2, metavar="N", help="default: 2")
    options.add_argument("--llama-bench", metavar="FILE", help="the peer's program (default: $LLAMA_BENCH, else llama-bench on PATH)")
    options.add_argument("--gguf", metavar="BUNDLE=FILE", action="append", default=[], help="the peer's file for a bundle, by its name")
    return run(measure, options.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
