"""What the runtime survives: damaged bundles, killed workers, a full memory group. Counts, no times.

    python -m benchmarks.faults BUNDLE [--damaged 300] [--kills 50] [--group-bytes 300MB] [--json]

- damaged: copies of the bundle with one region overwritten (the first and the last 64 KiB, and anywhere; inverted, zeroed, random, cut
  off), each opened by a host of its own without the hash check and asked for eight tokens. Each has a cache folder of its own, so its
  weights are packed anew: no copy is answered from what another packed. No host may die or hang, every error has a cause.
- kills: an engine's process gets SIGKILL at a random moment of an answer. The host must live, what was shown must be kept, and the
  next answer must be whole. A kill that an answer was faster than is tried again.
- group (Linux, root, version 1 control groups): a host in a memory group smaller than the plan is refused; forced, its engine's process is
  killed by the kernel, and the host lives to say so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from benchmarks.fault_host import PROMPT, WITHOUT_CAUSE
from benchmarks.harness import Report, Target, parser, run, say
from benchmarks.machine import ROOT
from toolkit import Bundle, Engine
from toolkit.cache import CACHE_VARIABLE
from toolkit.units import parse_bytes
from toolkit.worker_death import EngineCrashed
from toolkit.worker_proxy import RemoteEngine

NONE, ALL = Target("at most", 0), Target("at least", 1.0)
KINDS = ("inverted", "zeroed", "random", "cut off")
GROUPS = Path("/sys/fs/cgroup/memory")
HOST_LIMIT_S = 300.0  # above what `fault_host` allows its engine: 120 s to start, 30 s without progress
GROUP_HOST_LIMIT_S = 1200.0  # above what `toolkit run` allows it: 900 s for a result
TRIES_A_KILL = 5
HOST_DIED, HOST_HUNG = "the host died", "the host hung"
KEPT, TOO_LATE = "text kept, next answer whole", "killed after the answer"


def damage(data: bytearray, kind: str, start: int, size: int, chance: random.Random) -> bytearray:
    """The bytes with one region made wrong."""
    end = min(len(data), start + size)
    if kind == "cut off":
        return data[:start]
    region = {"inverted": bytes(b ^ 0xFF for b in data[start:end]), "zeroed": bytes(end - start), "random": chance.randbytes(end - start)}
    data[start:end] = region[kind]
    return data


def regions(n_bytes: int, n: int, chance: random.Random) -> list[tuple[str, int, int]]:
    """`n` places: a third in the first 64 KiB, where headers are, a third in the last, the others anywhere."""
    places = []
    for index in range(n):
        kind = KINDS[index % len(KINDS)]
        size = chance.choice((1, 8, 64, 1024, 65536))
        spans = ((0, min(65536, n_bytes)), (max(0, n_bytes - 65536), n_bytes), (0, n_bytes))
        low, high = spans[index % 3]
        places.append((kind, chance.randrange(low, high), size))
    return places


def take_damaged(bundle: Bundle, n: int, folder: Path) -> Counter[str]:
    """Open and ask each damaged copy; outcome -> how many."""
    chance, outcomes = random.Random(20261130), Counter[str]()
    whole = bundle.entry_path.read_bytes()
    copy = folder / "damaged"
    shutil.copytree(bundle.path, copy)
    for index, (kind, start, size) in enumerate(regions(len(whole), n, chance)):
        (copy / bundle.manifest.entry).write_bytes(damage(bytearray(whole), kind, start, size, chance))
        cache = folder / f"cache-{index}"  # packed weights are found by the manifest's hashes, which all copies share
        outcomes[_outcome(copy, cache)] += 1
        shutil.rmtree(cache, ignore_errors=True)
        if index % 20 == 19:
            say(f"damaged {index + 1} of {n}: {dict(outcomes)}")
    return outcomes


def run_host(command: list[str], cache: Path, limit_s: float) -> subprocess.CompletedProcess[str] | None:
    """Run a host to its end; None if it had to be ended because it hung. Its engine's process ends with it."""
    env = {**os.environ, CACHE_VARIABLE: str(cache), "PYTHONPATH": str(ROOT)}
    try:
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, errors="replace", timeout=limit_s)
    except subprocess.TimeoutExpired:
        say(f"the host hung: ended after {limit_s:g} s")
        return None


def _outcome(folder: Path, cache: Path) -> str:
    """What a host of its own made of a copy."""
    done = run_host([sys.executable, "-m", "benchmarks.fault_host", str(folder)], cache, HOST_LIMIT_S)
    if done is None:
        return HOST_HUNG
    if done.returncode or not done.stdout.strip():
        say(f"the host died with exit code {done.returncode}: {done.stderr[-300:]}")
        return HOST_DIED
    return done.stdout.strip().splitlines()[-1]


def take_kills(bundle: Bundle, n: int) -> Counter[str]:
    """Kill the engine's process `n` times while it answers; a kill that came too late is tried again, a few times each."""
    chance, outcomes = random.Random(7), Counter[str]()
    with Engine.open(bundle, context_length=512, isolated=True) as engine:
        for _ in range(TRIES_A_KILL * n):
            if n_killed(outcomes) == n:
                break
            outcomes[_kill_once(engine, chance.uniform(0.0, 0.6))] += 1
            say(f"kill {n_killed(outcomes)} of {n}: {dict(outcomes)}")
    return outcomes


def n_killed(outcomes: Counter[str]) -> int:
    """How many answers were cut off."""
    return outcomes.total() - outcomes[TOO_LATE]


def _kill_once(engine: Engine, after_s: float) -> str:
    native = engine.native
    assert isinstance(native, RemoteEngine)
    session, shown, pid = engine.plain_session(), "", native.worker.pid
    timer = threading.Timer(after_s, os.kill, [pid, signal.SIGKILL])
    timer.start()
    try:
        for piece in session.send(PROMPT, max_tokens=400):
            shown += piece.text
        timer.cancel()
        timer.join()
        with suppress(EngineCrashed):  # killed after all, just now: the engine has to notice before it is asked again
            engine.tokenize(PROMPT)
        return TOO_LATE
    except EngineCrashed:
        kept = session.messages[-1].content if session.messages else ""
        if kept != shown:
            return "text lost"
    text = "".join(piece.text for piece in engine.plain_session().send(PROMPT, max_tokens=8))
    return KEPT if text else "next answer empty"


_IN_GROUP = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
from toolkit.cli import main
code = main(sys.argv[2:])
print("HOST ALIVE", code, file=sys.stderr)
sys.exit(code)
"""


def take_group(bundle: Bundle, limit: int, cache: Path) -> dict[str, str]:
    """Run in a memory group of `limit` bytes, then forced: what each did."""
    group = GROUPS / f"toolkit-faults-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        outcomes = {}
        for name, extra in (("plan", []), ("forced", ["--force"])):
            run_it = ["run", str(bundle.path), PROMPT, "--max-tokens", "300", "--json", *extra]
            command = [sys.executable, "-c", _IN_GROUP, str(group), *run_it]
            done = run_host(command, cache / name, GROUP_HOST_LIMIT_S)
            if done is None:
                outcomes[name] = HOST_HUNG
                continue
            alive = f"HOST ALIVE {done.returncode}" in done.stderr
            result = json.loads(done.stdout) if done.stdout.strip().startswith("{") else {}
            why = result.get("error", {}).get("why", "no error")
            outcomes[name] = f"exit {done.returncode}, host {'alive' if alive else 'DEAD'}: {why}"
        return outcomes
    finally:
        _remove_group(group)


def _remove_group(group: Path) -> None:
    """Remove it as soon as its last process is gone."""
    for _ in range(50):
        try:
            group.rmdir()
            break
        except OSError:
            time.sleep(0.1)


def _add_damaged(report: Report, outcomes: Counter[str]) -> None:
    report.details["damaged"] = dict(outcomes)
    report.add("damaged bundles", "n_opened", [outcomes.total()])
    for name, outcome in (("n_host_deaths", HOST_DIED), ("n_host_hangs", HOST_HUNG), ("n_without_cause", WITHOUT_CAUSE)):
        report.add("damaged bundles", name, [outcomes[outcome]], NONE)


def _add_kills(report: Report, outcomes: Counter[str], n_asked: int) -> None:
    report.details["kills"] = dict(outcomes)
    report.add("killed workers", "n_killed", [n_killed(outcomes)], Target("at least", n_asked))
    if n_killed(outcomes):
        report.add("killed workers", "kept_share", [outcomes[KEPT] / n_killed(outcomes)], ALL)
    else:
        report.skipped["killed workers"] = "every answer ended before it was killed: take a larger model"


def _add_group(report: Report, told: dict[str, str]) -> None:
    report.details["group"] = told
    report.add("memory group", "refused_share", [float("exit 3, host alive" in told["plan"])], ALL)
    report.add("memory group", "killed_share", [float("the kernel killed it" in told["forced"])], ALL)
    report.add("memory group", "survived_share", [float("host alive" in told["forced"])], ALL)


def measure(args: argparse.Namespace) -> Report:
    bundle = Bundle.open(args.bundle)
    report = Report("faults", {"bundle": bundle.name, "damaged": args.damaged, "kills": args.kills, "group": args.group_bytes})
    with tempfile.TemporaryDirectory(prefix="faults-", dir=args.scratch) as scratch:
        os.environ[CACHE_VARIABLE] = str(Path(scratch) / "cache")
        if args.damaged:
            _add_damaged(report, take_damaged(bundle, args.damaged, Path(scratch)))
        if args.kills:
            _add_kills(report, take_kills(bundle, args.kills), args.kills)
        if not os.access(GROUPS, os.W_OK):
            report.skipped["memory group"] = "needs root and a version 1 memory control group"
        elif args.group_bytes:
            _add_group(report, take_group(bundle, parse_bytes(args.group_bytes), Path(scratch)))
    return report


def main() -> int:
    """Run the command; returns the exit code."""
    options = parser(__doc__)
    options.add_argument("bundle", metavar="BUNDLE", help="folder that `convert` wrote")
    options.add_argument("--damaged", type=int, default=300, metavar="N", help="damaged copies (default: 300)")
    options.add_argument("--kills", type=int, default=50, metavar="N", help="killed workers (default: 50)")
    options.add_argument("--group-bytes", default="300MB", metavar="SIZE", help="of the memory group; empty for none (default: 300MB)")
    options.add_argument("--scratch", metavar="DIR", type=Path, help="where copies go (default: the system's temporary folder)")
    return run(measure, options.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
