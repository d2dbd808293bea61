"""Memory and time of a command with all its children, sampled from /proc (Linux)."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from toolkit.errors import ToolkitError

INTERVAL_S = 0.04
_PROC = Path("/proc")
_LAST_LINES = 3
_PSS_STEP = 1.02


@dataclass(frozen=True)
class Memory:
    """Resident memory now. Anonymous pages are the process's own; mapped ones are files and can be dropped by the system."""

    rss_bytes: int
    anonymous_bytes: int
    high_water_bytes: int

    @property
    def mapped_bytes(self) -> int:
        return self.rss_bytes - self.anonymous_bytes


@dataclass
class TreeRun:
    """One command, from its start to its exit.

    Args:
        wall_s: From the call to the exit of the command.
        peak_rss_bytes: Highest sum of RSS over the tree. A page two processes share counts twice, so it is an upper bound.
        peak_anonymous_bytes: Anonymous part of that sum, at that moment.
        peak_pss_bytes: Highest sum of PSS, in which a shared page counts once. Reading it is slow, so it is read only when the sum
            of RSS has grown by 2 % since the last time: exact to about as much.
        peak_at_s: When that was.
        largest_process_rss_bytes: Highest VmHWM of any one process; exact up to its last sample.
        n_samples: Samples taken.
        longest_gap_s: Longest time between two of them.
        stdout: What the command printed.
        stderr: Its lines on stderr, each with the seconds since the start.
    """

    exit_code: int = 0
    wall_s: float = 0.0
    peak_rss_bytes: int = 0
    peak_anonymous_bytes: int = 0
    peak_pss_bytes: int = 0
    peak_at_s: float = 0.0
    largest_process_rss_bytes: int = 0
    n_samples: int = 0
    longest_gap_s: float = 0.0
    stdout: str = ""
    stderr: list[tuple[float, str]] = field(default_factory=list)

    def take(self, memories: Sequence[Memory], at_s: float) -> None:
        """Add one sample of the whole tree."""
        total = sum(memory.rss_bytes for memory in memories)
        if total > self.peak_rss_bytes:
            self.peak_rss_bytes, self.peak_at_s = total, at_s
            self.peak_anonymous_bytes = sum(memory.anonymous_bytes for memory in memories)
        self.largest_process_rss_bytes = max(self.largest_process_rss_bytes, *(memory.high_water_bytes for memory in memories), 0)
        self.n_samples += 1

    def check(self, what: str) -> None:
        """Raises:
        ToolkitError: The command failed; the text ends with the last lines it printed.
        """
        if self.exit_code:
            why = " | ".join([line for _, line in self.stderr if line.strip()][-_LAST_LINES:]) or "it printed nothing"
            fix = "run that command by itself and mend what it says"
            raise ToolkitError(f"{what} failed with exit code {self.exit_code}", why=why, fix=fix)


def run_tree(command: Sequence[str], *, env: Mapping[str, str] | None = None, interval_s: float = INTERVAL_S) -> TreeRun:
    """Run a command to its end, sampling the memory of it and of every process it starts.

    The command gets a session of its own; whatever of it still runs when this returns or is interrupted is killed.

    Args:
        env: Its whole environment; None passes ours on.
        interval_s: Time between samples; below 0.1 for the 10 Hz that short peaks need.

    Raises:
        ToolkitError: The program does not exist, or there is no /proc.
    """
    if not (_PROC / "self" / "status").exists():
        raise ToolkitError("memory of a process tree cannot be measured here", why="there is no /proc", fix="run this benchmark on Linux")
    result, started = TreeRun(), time.perf_counter()
    process = _start(command, env)
    readers = _read_output(process, result, started)
    try:
        _sample(process, result, started, interval_s)
    finally:
        _end_session(process.pid)
        result.exit_code = process.wait()
    for reader in readers:
        reader.join()
    return result


def _start(command: Sequence[str], env: Mapping[str, str] | None) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            list(command), env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True
        )
    except OSError as error:
        fix = "check its path and its permissions"
        raise ToolkitError(f"{command[0]} cannot be run", why=error.strerror or str(error), fix=fix) from error


def _sample(process: subprocess.Popen[str], result: TreeRun, started: float, interval_s: float) -> None:
    watch, last, pss_taken_at = Tree(process.pid), started, 0
    while process.poll() is None:
        pids = watch.members()
        memories = [memory for pid in pids if (memory := read_memory(pid)) is not None]
        if (total := sum(memory.rss_bytes for memory in memories)) > _PSS_STEP * pss_taken_at:
            result.peak_pss_bytes, pss_taken_at = max(result.peak_pss_bytes, sum(map(read_pss, pids))), total
        now = time.perf_counter()
        if memories:
            result.take(memories, now - started)
            result.longest_gap_s = max(result.longest_gap_s, now - last)
            last = now
        time.sleep(interval_s)
    result.wall_s = time.perf_counter() - started


def _end_session(session_id: int) -> None:
    try:
        os.killpg(session_id, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _read_output(process: subprocess.Popen[str], result: TreeRun, started: float) -> list[threading.Thread]:
    def read_stdout(stream: IO[str]) -> None:
        result.stdout = stream.read()

    def read_stderr(stream: IO[str]) -> None:
        for line in stream:
            result.stderr.append((time.perf_counter() - started, line.rstrip("\n")))

    assert process.stdout is not None and process.stderr is not None
    threads = [
        threading.Thread(target=read_stdout, args=[process.stdout], daemon=True),
        threading.Thread(target=read_stderr, args=[process.stderr], daemon=True),
    ]
    for thread in threads:
        thread.start()
    return threads


class Tree:
    """Which processes belong to a command: itself, its session, and every descendant seen while its parent lived."""

    def __init__(self, root_pid: int) -> None:
        self._root_pid = root_pid
        self._known: dict[int, bool] = {}  # pid -> is a member; what is alive never changes sides

    def members(self) -> list[int]:
        """Pids of the tree now."""
        alive = {int(name) for name in os.listdir(_PROC) if name.isdigit()}
        known = {pid: self._known[pid] for pid in alive & self._known.keys()}
        parents: dict[int, int] = {}
        for pid in alive - known.keys():
            if (ids := _parent_and_session(pid)) is not None:
                parents[pid], session_id = ids
                if pid == self._root_pid or session_id == self._root_pid:
                    known[pid] = True
        for pid in sorted(parents):
            known.setdefault(pid, self._descends(pid, parents, known))
        self._known = known
        return [pid for pid, is_member in known.items() if is_member]

    def _descends(self, pid: int, parents: dict[int, int], known: dict[int, bool]) -> bool:
        while pid in parents and pid not in known:
            pid = parents[pid]
        return known.get(pid, False)


def _parent_and_session(pid: int) -> tuple[int, int] | None:
    """Parent and session of a process (proc(5), /proc/pid/stat); None if it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    values = text.rpartition(")")[2].split()  # the name before it may hold anything
    return int(values[1]), int(values[3])


def read_memory(pid: int) -> Memory | None:
    """Memory of one process from /proc/pid/status; None if it is gone or a zombie."""
    try:
        lines = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    sizes = {name: 1024 * int(rest.split()[0]) for line in lines if line.endswith(" kB") for name, _, rest in [line.partition(":")]}
    if "VmRSS" not in sizes:
        return None
    return Memory(sizes["VmRSS"], sizes["RssAnon"], sizes["VmHWM"])


def read_pss(pid: int) -> int:
    """PSS of one process in bytes: each page divided by the processes that share it. 0 if it is gone or may not be read."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def read_own_memory() -> Memory:
    """Memory of this process.

    Raises:
        ToolkitError: There is no /proc.
    """
    memory = read_memory(os.getpid())
    if memory is None:
        raise ToolkitError("this process's memory cannot be measured", why="there is no /proc", fix="run this benchmark on Linux")
    return memory
