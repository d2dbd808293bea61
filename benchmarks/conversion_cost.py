"""What `convert` costs beside one bare litert-torch export: time and memory of the whole process tree, round by round.

    python -m benchmarks.conversion_cost smollm2-135m-instruct [--rounds 3] [--json]

"convert" makes fp32, int8 and int4-g32 bundles in one command, verification included, its work cache empty and the weights
already fetched. "litert-torch" exports the float model alone. Both are whole processes, so imports count. Takes minutes a round.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bare_export import CACHE_LENGTH, PREFILL_LENGTHS
from benchmarks.harness import Report, Target, paired_ratios, parser, run, say
from benchmarks.machine import ROOT
from benchmarks.process_tree import TreeRun, run_tree
from toolkit.bench_summary import interleaved
from toolkit.cache import CACHE_VARIABLE, cache_root
from toolkit.errors import FidelityError
from toolkit.fetch import fetch

OURS, BARE = "convert", "litert-torch"
RECIPES = "fp32,int8,int4-g32"
TIME_TARGETS = {"smollm2-135m-instruct": Target("at most", 1.2)}
MEMORY_TARGETS = {"smollm2-135m-instruct": Target("at most", 3.0e9), "gemma-3-270m": Target("at most", 4.5e9)}
_STAGE_END = re.compile(r"(\S.*): (\d+\.\d) s")


def stage_seconds(lines: Sequence[tuple[float, str]]) -> dict[str, float]:
    """Seconds of each finished stage, by its title, from what `convert` prints on stderr; a title seen again adds up."""
    seconds: dict[str, float] = {}
    for _, line in lines:
        if match := _STAGE_END.fullmatch(line):
            seconds[match[1]] = seconds.get(match[1], 0.0) + float(match[2])
    return seconds


def stage_at(lines: Sequence[tuple[float, str]], at_s: float) -> str:
    """The stage that began last before `at_s` and had not ended, or "between stages"."""
    running: list[str] = []
    for when, line in lines:
        if when > at_s:
            break
        if line.endswith(" ..."):
            running.append(line.removesuffix(" ..."))
        elif (match := _STAGE_END.fullmatch(line)) and match[1] in running:
            running.remove(match[1])
    return running[-1] if running else "between stages"


def work_cache(folder: Path) -> Path:
    """A cache in `folder` that holds the weights fetched so far and nothing else."""
    cache = folder / "cache"
    cache.mkdir(parents=True)
    if (cache_root() / "models").exists():
        (cache / "models").symlink_to(cache_root().resolve() / "models")
    return cache


def run_ours(model: str, recipes: str, folder: Path) -> tuple[TreeRun, dict[str, Any]]:
    """One cold conversion; returns its cost and the object `--json` prints. A bundle refused at a gate has cost as much as any."""
    env = {**os.environ, CACHE_VARIABLE: str(work_cache(folder))}
    command = [sys.executable, "-m", "converters.cli", model, "--recipe", recipes, "--out", str(folder / "bundles"), "--force", "--json"]
    cost = run_tree(command, env=env | {"PYTHONPATH": str(ROOT)})
    if cost.exit_code != FidelityError.exit_code:
        cost.check(f"convert {model} --recipe {recipes}")
    answer: dict[str, Any] = json.loads(cost.stdout)
    return cost, answer


def refusals(answer: dict[str, Any]) -> dict[str, str]:
    """Why bundles were not published, by recipe."""
    return {bundle["recipe"]: bundle["error"]["why"] for bundle in answer["bundles"] if "error" in bundle}


def run_bare(hf_dir: Path, folder: Path) -> TreeRun:
    """One bare export into an empty folder."""
    command = [sys.executable, "-m", "benchmarks.bare_export", "export", str(hf_dir), str(folder)]
    cost = run_tree(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    cost.check("the bare litert-torch export")
    return cost


def measure(args: argparse.Namespace) -> Report:
    fetch(args.model, accept_license=args.accept_license)
    settings = {"model": args.model, "recipes": args.recipe, "rounds": args.rounds, "bare_prefill_lengths": PREFILL_LENGTHS}
    report = Report("conversion_cost", settings | {"bare_cache_length": CACHE_LENGTH})
    costs: dict[str, list[TreeRun]] = {OURS: [], BARE: []}
    answers: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="conversion-cost-", dir=args.scratch) as name:
        scratch = Path(name)
        sides = [side for side in (BARE, OURS) if side not in args.without]
        report.skipped = dict.fromkeys(args.without, "left out with --without")
        if BARE in sides:
            prepare = [sys.executable, "-m", "benchmarks.bare_export", "prepare", args.model, str(scratch / "hf")]
            run_tree(prepare, env={**os.environ, "PYTHONPATH": str(ROOT)}).check(f"writing {args.model} as a Hugging Face directory")
        for index, side in interleaved(sides, args.rounds):
            folder = scratch / f"{side}-{index}"
            if side == OURS:
                cost, answer = run_ours(args.model, args.recipe, folder)
                answers.append(answer)
            else:
                cost = run_bare(scratch / "hf", folder)
            say(f"round {index + 1} of {args.rounds}: {side} {cost.wall_s:.1f} s, {cost.peak_rss_bytes / 2**20:.0f} MiB")
            costs[side].append(cost)
            shutil.rmtree(folder)
    _add_figures(report, args.model, costs)
    report.details = _details(costs, answers)
    report.skipped |= {f"publishing {name}": why for answer in answers for name, why in refusals(answer).items()}
    return report


def _add_figures(report: Report, model: str, costs: dict[str, list[TreeRun]]) -> None:
    for side, runs in costs.items():
        if not runs:
            continue
        limit = MEMORY_TARGETS.get(model) if side == OURS else None
        report.add(side, "wall_s", [run.wall_s for run in runs])
        report.add(side, "peak_rss_bytes", [run.peak_rss_bytes for run in runs], limit)
        report.add(side, "peak_pss_bytes", [run.peak_pss_bytes for run in runs])
        report.add(side, "peak_anonymous_bytes", [run.peak_anonymous_bytes for run in runs])
        report.add(side, "largest_process_rss_bytes", [run.largest_process_rss_bytes for run in runs])
    if costs[OURS] and costs[BARE]:
        ratios = paired_ratios([run.wall_s for run in costs[OURS]], [run.wall_s for run in costs[BARE]])
        report.add(f"{OURS} / {BARE}", "wall_ratio", ratios, TIME_TARGETS.get(model))
    stages = [stage_seconds(run.stderr) for run in costs[OURS]]
    for title in stages[0] if stages else {}:
        report.add(f"{OURS}: {title}", "stage_s", [seconds[title] for seconds in stages])


def _details(costs: dict[str, list[TreeRun]], answers: list[dict[str, Any]]) -> dict[str, Any]:
    figures = ("target", "recipe", "bytes", "bits_per_weight", "kl_mean", "verdict")
    runs = [run for side in costs.values() for run in side]
    return {
        "stage_of_peak": [stage_at(run.stderr, run.peak_at_s) for run in costs[OURS]],
        "peak_at_s": [round(run.peak_at_s, 1) for run in costs[OURS]],
        "least_samples_per_s": min(run.n_samples / run.wall_s for run in runs),
        "longest_gap_s": max(run.longest_gap_s for run in runs),
        "bundles": [[{name: bundle[name] for name in figures} for bundle in answer["bundles"]] for answer in answers],
    }


def main() -> int:
    """Run the command; returns the exit code."""
    options = parser(__doc__)
    options.add_argument("model", metavar="MODEL", help="a catalogue name, such as smollm2-135m-instruct or gemma-3-270m")
    options.add_argument("--recipe", default=RECIPES, metavar="NAMES", help=f"default: {RECIPES}")
    options.add_argument("--rounds", type=int, default=3, metavar="N", help="each side this often, turn by turn (default: 3)")
    options.add_argument("--without", choices=(OURS, BARE), action="append", default=[], help="leave a side out")
    options.add_argument("--accept-license", metavar="NAME", help="accept the terms of a model that asks for it")
    options.add_argument("--scratch", metavar="DIR", type=Path, help="where work files go (default: the system's temporary folder)")
    return run(measure, options.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
