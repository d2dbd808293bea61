"""Why an engine's process ended: from its exit code and the kernel's own counters, never from what it printed."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import toolkit.errors
from toolkit.errors import EngineError, ToolkitError
from toolkit.free_memory import ROOT, group_folders, read_counter, read_lines

_MOST_PRINTED = 300


class CrashCause(StrEnum):
    """What ended an engine's process."""

    MEMORY = "memory"  # the system killed it for memory, an allocation failed, or it outgrew its budget
    SIGNAL = "signal"  # native code broke: SIGSEGV, SIGABRT, SIGBUS, SIGILL, ...
    KILLED = "killed"  # somebody sent SIGKILL or SIGTERM, and memory was not short
    EXIT = "exit"  # it ended by itself
    HANG = "hang"  # no sign of life, or no progress
    START = "start"  # the bundle did not load in time
    GARBAGE = "garbage"  # it wrote what is no message


class EngineCrashed(EngineError):
    """An engine's process ended while it was needed. The host lives on; text that came before is kept.

    Attributes:
        cause: What ended it.
        last_event: What it was doing, as far as it told.
    """

    def __init__(self, what: str, *, why: str = "", fix: str, cause: CrashCause, last_event: str) -> None:
        super().__init__(what, why=why, fix=fix)
        self.cause, self.last_event = cause, last_event


@dataclass(frozen=True)
class OomCounters:
    """How many processes the kernel killed for memory: in the whole system, and in this process's control groups. None: not told."""

    system: int | None
    groups: int | None


def read_oom_counters(root: Path = ROOT) -> OomCounters:
    """Read the counters; what is not readable (Android) is None."""
    kills = []
    for folder, is_v2 in group_folders(root):
        if (n := read_counter(folder / ("memory.events" if is_v2 else "memory.oom_control"), "oom_kill")) is not None:
            kills.append(n)
    return OomCounters(read_counter(root / "proc/vmstat", "oom_kill"), sum(kills) if kills else None)


def explain_exit(code: int, before: OomCounters, after: OomCounters, *, shortage: str | None = None) -> tuple[CrashCause, str]:
    """The cause and a sentence for an exit code as `subprocess` gives it (negative: a signal).

    Args:
        code: Of the process.
        before: The counters when it started.
        after: The counters now.
        shortage: What was short while it lived. Killers outside of the kernel (systemd-oomd, lmkd) leave no counter; they act
            when next to nothing is free.
    """
    if code >= 0:
        return CrashCause.EXIT, f"it ended by itself with exit code {code}"
    name = _signal_name(-code)
    if -code != signal.SIGKILL:
        cause = CrashCause.KILLED if -code in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) else CrashCause.SIGNAL
        return cause, f"it died of {name}"
    if _has_risen(before.groups, after.groups):
        return CrashCause.MEMORY, "the kernel killed it because its control group's memory was full"
    if after.groups is None and _has_risen(before.system, after.system):  # the system's counter counts other groups' dead too
        return CrashCause.MEMORY, "the kernel killed it because memory was full"
    if after.system is None and after.groups is None:
        return CrashCause.MEMORY, "it got SIGKILL, which here is what running out of memory looks like"
    if shortage is not None:
        return CrashCause.MEMORY, f"it got SIGKILL while {shortage}"
    return CrashCause.KILLED, "somebody sent it SIGKILL; memory was not short"


def _has_risen(before: int | None, after: int | None) -> bool:
    return after is not None and after > (before or 0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def thread_states(pid: int) -> str:
    """What the threads of a process that does not answer are doing, as the kernel sees it; empty where it does not tell."""
    if sys.platform != "linux":
        return ""
    states = [next((line.split()[1] for line in read_lines(path) if line.startswith("State:")), "") for path in _tasks(pid)]
    words = {"R": "running", "S": "waiting", "D": "waiting for the disk", "T": "stopped", "t": "stopped", "Z": "dead"}
    counted = {word: sum(1 for state in states if words.get(state) == word) for word in dict.fromkeys(words.values())}
    return ", ".join(f"{n} threads {word}" for word, n in counted.items() if n)


def _tasks(pid: int) -> list[Path]:
    try:
        return [path / "status" for path in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []


FIXES = {
    CrashCause.MEMORY: "use a smaller --context or a smaller model, or close other programs; see what would fit: toolkit plan BUNDLE",
    CrashCause.SIGNAL: "check the file: toolkit verify BUNDLE; if it is sound, report this with the engine's version (toolkit doctor)",
    CrashCause.KILLED: "ask again: the engine opens anew",
    CrashCause.EXIT: "run it again with --debug and report what it prints",
    CrashCause.HANG: "ask again: the engine opens anew; if it stays, use fewer --threads or another --backend",
    CrashCause.START: "close other programs and try again; an accelerator that does not answer is avoided with another --backend",
    CrashCause.GARBAGE: "check the file: toolkit verify BUNDLE",
}


def crashed(what: str, cause: CrashCause, why: str, *, last_event: str, printed: bytes) -> EngineCrashed:
    """The error for an engine's process that has ended.

    Args:
        what: The bundle's name.
        cause: What ended it.
        why: The same in a sentence.
        last_event: What it was doing.
        printed: The end of what its native code wrote to stderr.
    """
    said = b" | ".join(line.strip() for line in printed.splitlines() if line.strip())[-_MOST_PRINTED:].decode("utf-8", errors="replace")
    told = f"; it was {last_event}" + (f"; it printed: {said}" if said else "")
    return EngineCrashed(f"the engine of {what} crashed", why=why + told, fix=FIXES[cause], cause=cause, last_event=last_event)


def raised(error: Any, what: str) -> ToolkitError:
    """The error a method raised over there, as one of ours."""
    kind = getattr(toolkit.errors, str(error["kind"]), None)
    if isinstance(kind, type) and issubclass(kind, ToolkitError):
        return kind(str(error["what"]), why=str(error["why"]), fix=str(error["fix"]))
    if error["kind"] == "MemoryError":
        return EngineCrashed(
            f"the engine of {what} ran out of memory",
            why=str(error["why"]),
            fix=FIXES[CrashCause.MEMORY],
            cause=CrashCause.MEMORY,
            last_event="allocating",
        )
    return EngineError(f"the engine of {what} failed", why=str(error["why"]), fix="run it again with --debug and report what it prints")
