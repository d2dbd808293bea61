"""llama.cpp's own benchmark, `llama-bench`, as a peer: found, run, and its JSON read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.process_tree import TreeRun, run_tree
from toolkit.errors import FormatError

VARIABLE = "LLAMA_BENCH"
MISSING = f"llama-bench is neither on PATH nor named by --llama-bench or {VARIABLE}; benchmarks/README.md says how to build it"


@dataclass(frozen=True)
class PeerTest:
    """One line of llama-bench: `n_prompt` tokens prefilled or `n_generated` decoded, with `n_depth` already in the KV cache."""

    n_prompt: int
    n_generated: int
    n_depth: int
    tokens_per_s: tuple[float, ...]


@dataclass(frozen=True)
class PeerRun:
    """What one run of llama-bench printed."""

    build: str
    tests: tuple[PeerTest, ...]

    def rates(self, *, n_prompt: int = 0, n_generated: int = 0, n_depth: int) -> tuple[float, ...]:
        """Tokens per second of each repetition of one test.

        Raises:
            FormatError: It was not run.
        """
        wanted = (n_prompt, n_generated, n_depth)
        for test in self.tests:
            if (test.n_prompt, test.n_generated, test.n_depth) == wanted:
                return test.tokens_per_s
        ran = [(test.n_prompt, test.n_generated, test.n_depth) for test in self.tests]
        what = f"llama-bench ran no test {wanted} (prompt, generated, depth)"
        raise FormatError(what, why=f"it ran {ran}", fix="use a llama.cpp that knows -d: b5200 or newer")


def find_llama_bench(given: str | None) -> Path | None:
    """The program: as given, else by the environment, else on PATH; None if there is none."""
    named = given or os.environ.get(VARIABLE) or "llama-bench"
    found = shutil.which(named)
    return Path(found) if found else None


def parse_llama_bench(text: str) -> PeerRun:
    """Read what `llama-bench -o json` prints on stdout.

    Raises:
        FormatError: It is no such JSON, or a rate is not a positive number.
    """
    try:
        rows = json.loads(text)
        tests = tuple(_test(row) for row in rows)
        build = f"b{rows[0]['build_number']} {rows[0]['build_commit']}"
    except (ValueError, KeyError, TypeError, IndexError) as error:
        why = f"{type(error).__name__}: {error}; it begins {text[:60]!r}"
        raise FormatError("llama-bench printed something else than its JSON", why=why, fix="run it by hand with -o json") from error
    return PeerRun(build, tests)


def _test(row: dict[str, Any]) -> PeerTest:
    rates = tuple(float(rate) for rate in row["samples_ts"])
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise ValueError(f"samples_ts is {row['samples_ts']}")
    return PeerTest(int(row["n_prompt"]), int(row["n_gen"]), int(row["n_depth"]), rates)


def run_llama_bench(
    program: Path, gguf: Path, *, n_prompt: int, n_generated: int, depths: Sequence[int], threads: int, repeats: int
) -> tuple[PeerRun, TreeRun]:
    """Measure a GGUF file; llama-bench warms up by itself before each test.

    Raises:
        ToolkitError: It failed.
        FormatError: It printed something unknown.
    """
    command = [str(program), "-m", str(gguf), "-p", str(n_prompt), "-n", str(n_generated), "-d", ",".join(map(str, depths))]
    cost = run_tree([*command, "-t", str(threads), "-r", str(repeats), "-o", "json"])
    cost.check(f"llama-bench on {gguf.name}")
    return parse_llama_bench(cost.stdout), cost
