"""What `convert --to mlx` costs beside `mlx_lm.convert`, and what a model of two billion parameters takes.

    python -m benchmarks.mlx_conversion smollm2-135m-instruct [--rounds 3] [--json]

"convert" makes the int4-g32 bundle, unverified, its work cache empty and the weights already fetched. "mlx_lm.convert" quantizes
the same model from bfloat16. Both are whole processes, so imports count. The two billion are random numbers drawn block by block:
nothing but the bundle (1.3 * 10^9 bytes) is written.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.conversion_cost import work_cache
from benchmarks.harness import Report, Target, paired_ratios, parser, run, say
from benchmarks.lazy_checkpoint import N_LAYERS, lazy_spec
from benchmarks.machine import ROOT
from benchmarks.process_tree import TreeRun, run_tree
from toolkit.bench_summary import interleaved
from toolkit.cache import CACHE_VARIABLE
from toolkit.fetch import fetch

OURS, BARE, LARGE = "convert", "mlx_lm.convert", "convert, random weights"
RECIPE = "int4-g32"
TIME_TARGETS = {"smollm2-135m-instruct": Target("at most", 5.0)}
MEMORY_TARGETS = {"smollm2-135m-instruct": Target("at most", 0.35e9)}
LARGE_MEMORY_TARGET = Target("at most", 2.0e9)


def run_module(arguments: Sequence[str], folder: Path, what: str) -> TreeRun:
    """One command of this interpreter with a work cache of its own in `folder`."""
    env = {**os.environ, CACHE_VARIABLE: str(work_cache(folder)), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    cost = run_tree([sys.executable, "-m", *arguments], env=env)
    cost.check(what)
    return cost


def run_side(side: str, args: argparse.Namespace, hf_dir: Path, folder: Path) -> TreeRun:
    out = folder / "bundles"
    if side == OURS:
        command = ["converters.cli", args.model, "--to", "mlx", "--recipe", RECIPE, "--no-verify", "--out", str(out), "--json"]
        return run_module(command, folder, f"convert {args.model} --to mlx --recipe {RECIPE} --no-verify")
    if side == BARE:
        return run_module(["benchmarks.bare_mlx", "convert", str(hf_dir), str(out)], folder, "mlx_lm.convert")
    return run_module(["benchmarks.lazy_checkpoint", str(out), "--layers", str(args.layers)], folder, "converting random weights")


def measure(args: argparse.Namespace) -> Report:
    fetch(args.model, accept_license=args.accept_license)
    settings = {"model": args.model, "recipe": RECIPE, "rounds": args.rounds, "large_parameters": lazy_spec(args.layers).n_parameters}
    report = Report("mlx_conversion", settings)
    sides = [side for side in (BARE, OURS, LARGE) if side not in args.without]
    report.skipped = dict.fromkeys(args.without, "left out with --without")
    if BARE in sides and find_spec("mlx_lm") is None:
        sides.remove(BARE)
        report.skipped[BARE] = "mlx_lm is not installed: pip install 'ondevice-toolkit[mlx]'"
    costs: dict[str, list[TreeRun]] = {side: [] for side in sides}
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="mlx-conversion-", dir=args.scratch) as name:
        scratch = Path(name)
        if BARE in sides:
            run_module(["benchmarks.bare_mlx", "prepare", args.model, str(scratch / "hf")], scratch / "prepare", f"writing {args.model}")
        for index, side in interleaved(sides, args.rounds):
            folder = scratch / f"{sides.index(side)}-{index}"
            cost = run_side(side, args, scratch / "hf", folder)
            say(f"round {index + 1} of {args.rounds}: {side} {cost.wall_s:.1f} s, {cost.peak_rss_bytes / 2**20:.0f} MiB")
            costs[side].append(cost)
            sizes[side] = sum(path.stat().st_size for path in (folder / "bundles").rglob("*.safetensors"))
            shutil.rmtree(folder)
    _add_figures(report, args.model, costs, is_large=args.layers == N_LAYERS)
    runs = [each for side in costs.values() for each in side]
    report.details = {"weight_file_bytes": sizes, "longest_gap_s": max(each.longest_gap_s for each in runs)}
    return report


def _add_figures(report: Report, model: str, costs: dict[str, list[TreeRun]], *, is_large: bool) -> None:
    """Add what each side took. `is_large`: the random model has the size its target is for; a smaller one would always meet it."""
    limits = {OURS: (TIME_TARGETS.get(model), MEMORY_TARGETS.get(model)), LARGE: (None, LARGE_MEMORY_TARGET if is_large else None)}
    for side, runs in costs.items():
        time_limit, memory_limit = limits.get(side, (None, None))
        report.add(side, "wall_s", [each.wall_s for each in runs], time_limit)
        report.add(side, "peak_rss_bytes", [each.peak_rss_bytes for each in runs], memory_limit)
        report.add(side, "peak_anonymous_bytes", [each.peak_anonymous_bytes for each in runs])
        report.add(side, "largest_process_rss_bytes", [each.largest_process_rss_bytes for each in runs])
    if OURS in costs and BARE in costs:
        ratios = paired_ratios([each.wall_s for each in costs[OURS]], [each.wall_s for each in costs[BARE]])
        report.add(f"{OURS} / {BARE}", "wall_ratio", ratios)


def main() -> int:
    """Run the command; returns the exit code."""
    options = parser(__doc__)
    options.add_argument("model", metavar="MODEL", help="a catalogue name, such as smollm2-135m-instruct")
    options.add_argument("--rounds", type=int, default=3, metavar="N", help="each side this often, turn by turn (default: 3)")
    options.add_argument("--layers", type=int, default=N_LAYERS, metavar="N", help=f"of the random model (default: {N_LAYERS})")
    options.add_argument("--without", choices=(OURS, BARE, LARGE), action="append", default=[], help="leave a side out")
    options.add_argument("--accept-license", metavar="NAME", help="accept the terms of a model that asks for it")
    options.add_argument("--scratch", metavar="DIR", type=Path, help="where work files go (default: the system's temporary folder)")
    return run(measure, options.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
