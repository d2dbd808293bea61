"""Print every figure of this folder on this machine, one benchmark after the other.

    python -m benchmarks [--only startup,decode_speed] [--quick] [--check]

Bundles that are missing are converted first. What this machine cannot run (a licence not accepted, a package or a peer not installed)
is skipped with the reason. Each benchmark is a command of its own; README.md lists them.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness import RESULTS, leave, say
from benchmarks.machine import ROOT
from toolkit.catalog import load_catalog
from toolkit.licenses import accepted_at

SMOLLM2, GEMMA = "smollm2-135m-instruct", "gemma-3-270m"
_TARGET = "-litert-"
CONVERTER = ("litert_torch",)  # what converting to LiteRT imports


@dataclass(frozen=True)
class Benchmark:
    """One command.

    Args:
        module: In this package.
        bundles: Names of the bundles it is given.
        models: Models it converts itself.
        needs: Packages it imports beyond the toolkit's own; those a bundle's conversion needs are asked for when one is missing.
        quick: Options of a short run, which shows that the command works.
    """

    module: str
    bundles: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    quick: tuple[str, ...] = ("--rounds", "1")


BENCHMARKS = (
    Benchmark("startup", quick=("--rounds", "5")),
    Benchmark("governor_policy", quick=()),
    Benchmark("engine_overhead", (f"{SMOLLM2}-litert-int8",), quick=("--rounds", "2")),
    Benchmark("decode_speed", (f"{SMOLLM2}-litert-int8", f"{GEMMA}-litert-int8")),
    Benchmark("model_memory", (f"{GEMMA}-litert-int4-g32", f"{GEMMA}-litert-int8", f"{SMOLLM2}-litert-int8", f"{SMOLLM2}-litert-int4-g32")),
    Benchmark(
        "memory_prediction",
        (f"{SMOLLM2}-litert-int8", f"{SMOLLM2}-litert-int4-g32", f"{GEMMA}-litert-int8", f"{GEMMA}-litert-int4-g32"),
        quick=("--contexts", "384"),
    ),
    Benchmark("faults", (f"{SMOLLM2}-litert-int8",), quick=("--damaged", "4", "--kills", "1", "--group-bytes", "")),
    Benchmark("conversion_cost", models=(SMOLLM2,), needs=CONVERTER),
    Benchmark("conversion_cost", models=(GEMMA,), needs=CONVERTER),
    Benchmark("mlx_conversion", models=(SMOLLM2,), needs=("gguf", "tokenizers"), quick=("--rounds", "1", "--layers", "1")),
    Benchmark("gguf_reading", models=(GEMMA,), needs=("gguf", "torch", "transformers")),
)


@dataclass
class Place:
    """Where bundles are, why some cannot be had here, and which conversions failed with which exit code."""

    folder: Path
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    def path(self, bundle: str) -> Path:
        return self.folder / bundle

    def make_missing(self, bundles: Sequence[str]) -> None:
        """Convert what is not there, all recipes of a model in one command; what cannot be had goes to `refused`."""
        missing = [name for name in bundles if name not in self.refused and not (self.path(name) / "manifest.json").is_file()]
        for model in dict.fromkeys(name.partition(_TARGET)[0] for name in missing):
            names = [name for name in missing if name.startswith(model + _TARGET)]
            recipes = ",".join(name.partition(_TARGET)[2] for name in names)
            if (reason := cannot_have(model, CONVERTER) or self._convert(model, recipes)) is not None:
                self.refused |= {name: reason for name in names if not (self.path(name) / "manifest.json").is_file()}

    def _convert(self, model: str, recipes: str) -> str | None:
        """Convert; returns why some recipe is not there, or None."""
        say(f"converting {model}, {recipes}, into {self.folder}")
        command = [sys.executable, "-m", "converters.cli", model, "--recipe", recipes, "--out", str(self.folder), "--json"]
        code, printed = run_command(command, is_captured=True)
        if code == 0:
            return None
        self.failed[f"convert {model} --recipe {recipes}"] = code
        try:
            error = json.loads(printed)["error"]
            return f"{error['what']}: {error['why']}"
        except (ValueError, KeyError, TypeError):
            return f"convert {model} failed with exit code {code}"


def run_command(command: Sequence[str], *, is_captured: bool = False) -> tuple[int, str]:
    """Run a command at the root of the repository: its exit code, and what it printed if `is_captured`.

    When we are told to stop it is told so too, and gets the time to remove what it has made.
    """
    with subprocess.Popen(list(command), cwd=ROOT, stdout=subprocess.PIPE if is_captured else None, text=True) as process:
        try:
            printed, _ = process.communicate()
        except BaseException:
            process.terminate()
            raise
    return process.returncode, printed or ""


def cannot_have(model: str, needs: Sequence[str]) -> str | None:
    """Why nothing can be done with a model of the catalogue here, or None.

    Args:
        needs: Packages that have to be installed for it.
    """
    if missing := [name for name in needs if find_spec(name) is None]:
        return f"{', '.join(missing)} not installed: pip install 'ondevice-toolkit[convert]'"
    terms = load_catalog().model(model).license
    if terms.must_accept and accepted_at(terms.id) is None:
        return f"its licence was not accepted: toolkit models pull {model} --accept-license {terms.id}"
    return None


def run_one(benchmark: Benchmark, place: Place, options: Sequence[str], *, quick: bool, skipped: dict[str, str]) -> int | None:
    """Run a benchmark on what can be had; its exit code, or None when nothing of it can be run."""
    title = " ".join([benchmark.module, *benchmark.models])
    place.make_missing(benchmark.bundles)
    refused = {name: place.refused[name] for name in benchmark.bundles if name in place.refused}
    refused |= {model: reason for model in benchmark.models if (reason := cannot_have(model, benchmark.needs)) is not None}
    skipped |= {f"{title}: {name}": reason for name, reason in refused.items()}
    inputs = [str(place.path(name)) for name in benchmark.bundles if name not in refused]
    inputs += [model for model in benchmark.models if model not in refused]
    if (benchmark.bundles or benchmark.models) and not inputs:
        return None
    say(f"\n== {title}")
    command = [sys.executable, "-m", f"benchmarks.{benchmark.module}", *inputs, *options, *(benchmark.quick if quick else ())]
    return run_command(command)[0]


KNOWN = tuple(dict.fromkeys(benchmark.module for benchmark in BENCHMARKS))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAMES", default=",".join(KNOWN), help=f"comma separated, of {', '.join(KNOWN)}")
    parser.add_argument("--bundles", type=Path, default=ROOT / "bundles", metavar="DIR", help="where bundles are or go (default: bundles)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where records go (default: benchmarks/results)")
    parser.add_argument("--quick", action="store_true", help="a round or two of each: shows that the commands work, measures nothing")
    parser.add_argument("--json", action="store_true", help="one JSON object a benchmark, and one that says what was skipped")
    parser.add_argument("--no-record", action="store_true", help="keep no record of these runs")
    parser.add_argument("--check", action="store_true", help="fail when a target is missed")
    return parser


def main() -> int:
    """Run the command; returns 0, or 1 when a conversion or a benchmark failed (with --check also when a target was missed)."""
    parser = _parser()
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, leave)
    wanted = [name.strip() for name in args.only.split(",") if name.strip()]
    if unknown := sorted(set(wanted) - set(KNOWN)):
        parser.error(f"no benchmark is called {unknown[0]}; known are {', '.join(KNOWN)}")
    options = ["--results", str(args.results.resolve())]
    options += [f"--{name.replace('_', '-')}" for name in ("json", "no_record", "check") if getattr(args, name)]
    place, skipped, failed = Place(args.bundles.resolve()), dict[str, str](), dict[str, int]()
    for benchmark in BENCHMARKS:
        if benchmark.module in wanted and (code := run_one(benchmark, place, options, quick=args.quick, skipped=skipped)):
            failed[" ".join([benchmark.module, *benchmark.models])] = code
    failed |= place.failed
    if args.json:
        print(json.dumps({"skipped": skipped, "failed": failed}, ensure_ascii=False))
    else:
        print("".join(f"skipped {what}: {why}\n" for what, why in skipped.items()), end="")
        print("".join(f"failed {what}: exit code {code}\n" for what, code in failed.items()), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
