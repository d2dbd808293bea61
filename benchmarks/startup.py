"""How long a user waits before anything happens: whole processes, from their start to their exit.

    python -m benchmarks.startup [--rounds 30] [--json]

`toolkit --help` has to stay under 100 ms and `import toolkit` under 50 ms; an interpreter that does nothing is measured beside them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Report, Target, parser, run
from toolkit.bench_summary import interleaved
from toolkit.errors import ToolkitError

TARGETS = {"toolkit --help": Target("at most", 0.100), "import toolkit": Target("at most", 0.050)}


def commands() -> dict[str, list[str]]:
    """What is started, by the name it is printed under."""
    return {
        "python, nothing": [sys.executable, "-c", "pass"],
        "import toolkit": [sys.executable, "-c", "import toolkit"],
        "toolkit --help": [str(Path(sys.executable).with_name("toolkit")), "--help"],
    }


def wall_s(command: Sequence[str]) -> float:
    """Seconds one process takes; what it prints is thrown away.

    Raises:
        ToolkitError: It cannot be started, or fails.
    """
    started = time.perf_counter()
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except OSError as error:
        raise ToolkitError(f"{command[0]} cannot be run", why=error.strerror or "", fix="install the project: pip install -e .") from error
    seconds = time.perf_counter() - started
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()[-300:]
        raise ToolkitError(f"{' '.join(command)} failed with exit code {done.returncode}", why=why, fix="run it by itself")
    return seconds


def measure(args: argparse.Namespace) -> Report:
    report = Report("startup", {"rounds": args.rounds})
    sides = commands()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for command in sides.values():
        wall_s(command)  # once unmeasured: byte code and files in the page cache
    for _, name in interleaved(list(sides), args.rounds):
        seconds[name].append(wall_s(sides[name]))
    for name, values in seconds.items():
        report.add(name, "wall_s", values, TARGETS.get(name))
    return report


def main() -> int:
    """Run the command; returns the exit code."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=30, metavar="N", help="processes of each kind (default: 30)")
    return run(measure, options.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
