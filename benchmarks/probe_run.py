"""Running `engine_probe` as a child, its memory sampled from outside."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.process_tree import TreeRun, run_tree
from toolkit.cache import CACHE_VARIABLE


@dataclass(frozen=True)
class Job:
    """What one child does: a prompt of `n_prompt` tokens, then `n_answer` tokens; the engine in a process of its own, or in the child."""

    n_prompt: int
    n_answer: int
    threads: int
    repeats: int = 1
    warm_up: bool = False
    in_process: bool = False


def run_probe(bundle: Path, job: Job, *, cache: Path | None = None) -> tuple[dict[str, Any], TreeRun]:
    """Do one job in a fresh process.

    Args:
        cache: The child's cache folder, where the engine keeps repacked weights; None for the user's.

    Returns:
        What the child printed (see `engine_probe.job`), and its cost as seen from outside.

    Raises:
        ToolkitError: The child failed; the text holds its own error.
    """
    command = [sys.executable, "-m", "benchmarks.engine_probe", str(bundle)]
    command += ["--prompt-tokens", str(job.n_prompt), "--answer-tokens", str(job.n_answer)]
    command += ["--threads", str(job.threads), "--repeats", str(job.repeats), *(["--warm-up"] if job.warm_up else [])]
    command += ["--in-process"] if job.in_process else []
    env = {**os.environ, "PYTHONPATH": str(ROOT)} | ({CACHE_VARIABLE: str(cache)} if cache is not None else {})
    cost = run_tree(command, env=env)
    cost.check(f"a job of {job.n_prompt} + {job.n_answer} tokens on {bundle.name}")
    figures: dict[str, Any] = json.loads(cost.stdout)
    return figures, cost
