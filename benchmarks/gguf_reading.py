"""What it costs to turn a GGUF file into float32 safetensors, beside transformers' own loading of the same file.

    python -m benchmarks.gguf_reading gemma-3-270m [--rounds 3] [--json]

"write_hf" writes a Hugging Face directory that transformers loads. "transformers" only loads: it refuses to save what it has read
from GGUF. Both are whole processes, so imports count; the weights are fetched before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Report, Target, paired_ratios, parser, run, say
from benchmarks.machine import ROOT
from benchmarks.process_tree import TreeRun, run_tree
from toolkit.bench_summary import interleaved
from toolkit.fetch import fetch

OURS, PEER = "write_hf", "transformers"
TIME_TARGETS = {"gemma-3-270m": Target("at most", 12.0)}
MEMORY_TARGETS = {"gemma-3-270m": Target("at most", 1.0e9)}
CODE = {
    OURS: "import sys; from pathlib import Path; from converters.read.gguf import read_gguf; "
    "read_gguf(Path(sys.argv[1])).write_hf(Path(sys.argv[2]))",
    PEER: "import sys, torch; from pathlib import Path; from transformers import AutoModelForCausalLM; path = Path(sys.argv[1]); "
    "AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)",
}


def run_side(side: str, gguf: Path, folder: Path) -> TreeRun:
    cost = run_tree(
        [sys.executable, "-c", CODE[side], str(gguf), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
    )
    cost.check(f"{side} of {gguf.name}")
    return cost


def measure(args: argparse.Namespace) -> Report:
    gguf = fetch(args.model, accept_license=args.accept_license).path
    report = Report("gguf_reading", {"model": args.model, "bytes": gguf.stat().st_size, "rounds": args.rounds})
    sides = [side for side in (PEER, OURS) if side not in args.without]
    report.skipped = dict.fromkeys(args.without, "left out with --without")
    costs: dict[str, list[TreeRun]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="gguf-reading-", dir=args.scratch) as name:
        for index, side in interleaved(sides, args.rounds):
            folder = Path(name) / f"{side}-{index}"
            cost = run_side(side, gguf, folder)
            say(f"round {index + 1} of {args.rounds}: {side} {cost.wall_s:.1f} s, {cost.peak_rss_bytes / 2**20:.0f} MiB")
            costs[side].append(cost)
            shutil.rmtree(folder, ignore_errors=True)
    for side, runs in costs.items():
        is_ours = side == OURS
        report.add(side, "wall_s", [each.wall_s for each in runs], TIME_TARGETS.get(args.model) if is_ours else None)
        report.add(side, "peak_rss_bytes", [each.peak_rss_bytes for each in runs], MEMORY_TARGETS.get(args.model) if is_ours else None)
        report.add(side, "peak_anonymous_bytes", [each.peak_anonymous_bytes for each in runs])
    if len(sides) == 2:
        ratios = paired_ratios([each.wall_s for each in costs[OURS]], [each.wall_s for each in costs[PEER]])
        report.add(f"{OURS} / {PEER}", "wall_ratio", ratios)
    return report


def main() -> int:
    """Run the command; returns the exit code."""
    options = parser(__doc__)
    options.add_argument("model", metavar="MODEL", help="a catalogue name whose weights are a GGUF file, such as gemma-3-270m")
    options.add_argument("--rounds", type=int, default=3, metavar="N", help="each side this often, turn by turn (default: 3)")
    options.add_argument("--without", choices=(OURS, PEER), action="append", default=[], help="leave a side out")
    options.add_argument("--accept-license", metavar="NAME", help="accept the terms of a model that asks for it")
    options.add_argument("--scratch", metavar="DIR", type=Path, help="where work files go (default: the system's temporary folder)")
    return run(measure, options.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
