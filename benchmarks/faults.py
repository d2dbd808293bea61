"""What the runtime survives: damaged bundles, killed workers, a full memory group. Counts, no times.

    python -m benchmarks.faults BUNDLE [--damaged 300] [--kills 50] [--group-bytes 300MB] [--json]

- damaged: copies of the bundle with one region overwritten (the first and the last 64 KiB, and anywhere; inverted, zeroed, random, cut
  off), each opened by a host of its own without the hash check and asked for eight tokens. No host may die, every error has a cause.
- kills: an engine's process gets SIGKILL at a random moment of an answer. The host must live, what was shown must be kept, and the
  next answer must be whole.
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
HOST_DIED = "the host died"


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
        outcomes[_outcome(copy)] += 1
        if index % 20 == 19:
            say(f"damaged {index + 1} of {n}: {dict(outcomes)}")
    return outcomes


def _outcome(folder: Path) -> str:
    """What a host of its own made of a copy."""
    command = [sys.executable, "-m", "benchmarks.fault_host", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, errors="replace")
    if done.returncode or not done.stdout.strip():
        say(f"the host died with exit code {done.returncode}: {done.stderr[-300:]}")
        return HOST_DIED
    return done.stdout.strip().splitlines()[-1]


def take_kills(bundle: Bundle, n: int) -> Counter[str]:
    """Kill the engine's process `n` times while it answers."""
    chance, outcomes = random.Random(7), Counter[str]()
    with Engine.open(bundle, context_length=512, isolated=True) as engine:
        for index in range(n):
            outcomes[_kill_once(engine, chance.uniform(0.0, 0.6))] += 1
            say(f"kill {index + 1} of {n}: {dict(outcomes)}")
    return outcomes


def _kill_once(engine: Engine, after_s: float) -> str:
    native = engine.native
    assert isinstance(native, RemoteEngine)
    session, shown, pid = engine.plain_session(), "", native.worker.pid
    timer = threading.Timer(after_s, os.kill, [pid, signal.SIGKILL])
    timer.start()
    try:
        for piece in session.send(PROMPT, max_tokens=400):
            shown += piece.text
        timer.join()
        time.sleep(0.05)
        return "killed after the answer"
    except EngineCrashed:
        kept = session.messages[-1].content if session.messages else ""
        if kept != shown:
            return "text lost"
    text = "".join(piece.text for piece in engine.plain_session().send(PROMPT, max_tokens=8))
    return "text kept, next answer whole" if text else "next answer empty"


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
            command = [
                sys.executable,
                "-c",
                _IN_GROUP,
                str(group),
                "run",
                str(bundle.path),
                PROMPT,
                "--max-tokens",
                "300",
                "--json",
                *extra,
            ]
            env = {**os.environ, CACHE_VARIABLE: str(cache / name), "PYTHONPATH": str(ROOT)}
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, errors="replace")
            alive = f"HOST ALIVE {done.returncode}" in done.stderr
            result = json.loads(done.stdout) if done.stdout.strip().startswith("{") else {}
            why = result.get("error", {}).get("why", "no error")
            outcomes[name] = f"exit {done.returncode}, host {'alive' if alive else 'DEAD'}: {why}"
        return outcomes
    finally:
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def measure(args: argparse.Namespace) -> Report:
    bundle = Bundle.open(args.bundle)
    report = Report("faults", {"bundle": bundle.name, "damaged": args.damaged, "kills": args.kills, "group": args.group_bytes})
    with tempfile.TemporaryDirectory(prefix="faults-", dir=args.scratch) as scratch:
        os.environ[CACHE_VARIABLE] = str(Path(scratch) / "cache")
        if args.damaged:
            outcomes = take_damaged(bundle, args.damaged, Path(scratch))
            report.details["damaged"] = dict(outcomes)
            report.add("damaged bundles", "n_opened", [outcomes.total()])
            report.add("damaged bundles", "n_host_deaths", [outcomes[HOST_DIED]], NONE)
            report.add("damaged bundles", "n_without_cause", [outcomes[WITHOUT_CAUSE]], NONE)
        if args.kills:
            outcomes = take_kills(bundle, args.kills)
            report.details["kills"] = dict(outcomes)
            bad = outcomes["text lost"] + outcomes["next answer empty"]
            report.add("killed workers", "n_killed", [outcomes.total()])
            report.add("killed workers", "kept_share", [1 - bad / outcomes.total()], ALL)
        if not os.access(GROUPS, os.W_OK):
            report.skipped["memory group"] = "needs root and a version 1 memory control group"
        elif args.group_bytes:
            told = take_group(bundle, parse_bytes(args.group_bytes), Path(scratch))
            report.details["group"] = told
            report.add("memory group", "refused_share", [float("exit 3, host alive" in told["plan"])], ALL)
            report.add("memory group", "killed_share", [float("the kernel killed it" in told["forced"])])
            report.add("memory group", "survived_share", [float("host alive" in told["forced"])], ALL)
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
