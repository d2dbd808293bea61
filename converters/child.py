"""Running one heavy function in a process of its own.

A converter holds gigabytes that Python never gives back, prints over the user's screen, and can die of a signal.
In a child its memory ends with it, its output goes to a log, and its death becomes an error with a cause.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import toolkit.errors
from toolkit.cache import cache_directory
from toolkit.errors import BudgetError, ToolkitError

_running: set[subprocess.Popen[bytes]] = set()

PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, linux/prctl.h
TIME_LIMIT = "time limit"
MEMORY_LIMIT = "MemoryError"
LAST_LOG_LINES = 3
LAST_LOG_BYTES = 2**16
MOST_LOGS = 10


class ChildDeathError(ToolkitError):
    """A child ended before it answered.

    Attributes:
        cause: How, as in "it died of CAUSE": a signal's name, an exit code, the time limit, or memory it was not given.
    """

    def __init__(self, what: str, *, why: str, fix: str, cause: str) -> None:
        super().__init__(what, why=why, fix=fix)
        self.cause = cause


def run_in_child(function: str, arguments: dict[str, Any], *, what: str, timeout_s: float | None = None) -> dict[str, Any]:
    """Call `package.module:function(**arguments)` in a new process and return what it returned.

    Arguments and result are JSON data. The child dies with its parent (Linux), and an interrupt ends it at once.
    What it prints is kept only if it fails without an error of its own, and then in the cache folder.

    Args:
        function: Import path, `converters.targets.litert_export:export_float`.
        arguments: Keyword arguments.
        what: What it does, for the error text: "lower the model to LiteRT".
        timeout_s: The child is ended after so many seconds; None for no limit.

    Raises:
        ToolkitError: What the function raised, unchanged if it was a ToolkitError of the function's own.
        ChildDeathError: The child crashed, left without an answer, or ran out of time or of the memory it may take.
        BudgetError: The child was killed by SIGKILL, which is what running out of memory looks like.
    """
    with tempfile.TemporaryFile() as log, _started(function, arguments, log) as (process, result_end):
        with _ended_after(timeout_s, process) as is_late:
            with os.fdopen(result_end, "rb") as stream:
                answer = stream.read()
            code = process.wait()
        if code and is_late.is_set():
            why, fix = f"it took longer than {timeout_s:g} s", "try again on a machine with less to do"
            raise ChildDeathError(f"could not {what}: it was ended", why=why, fix=fix, cause=TIME_LIMIT)
        if code or not answer:
            _explain_death(what, code, log)
        data: dict[str, Any] = json.loads(answer)
        if "error" in data:
            _raise_again(what, data["error"], log)
    result: dict[str, Any] = data["result"]
    return result


def end_children() -> None:
    """Kill every child of this process that is running: an interrupted conversion must leave nobody working."""
    for process in list(_running):
        process.kill()


@contextmanager
def _started(function: str, arguments: dict[str, Any], log: BinaryIO) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    result_end, child_end = os.pipe()
    command = [sys.executable, "-m", "converters.child", function, str(child_end), str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=(child_end,), env=_environment())
    os.close(child_end)
    _running.add(process)
    try:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(arguments).encode())
            process.stdin.close()
        except BrokenPipeError:
            pass  # it died while starting; the exit code says of what
        yield process, result_end
    finally:
        process.kill()
        process.wait()
        _running.discard(process)


@contextmanager
def _ended_after(timeout_s: float | None, process: subprocess.Popen[bytes]) -> Iterator[threading.Event]:
    """Kill a process that outlives its time; the event tells that it did."""
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        process.kill()

    timer = threading.Timer(timeout_s or 0.0, end)
    timer.daemon = True
    if timeout_s is not None:
        timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()


def _environment() -> dict[str, str]:
    """The parent's environment; imports find the same packages, and no library asks the network about a local file."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def _explain_death(what: str, code: int, log: BinaryIO) -> NoReturn:
    if code == -signal.SIGKILL:
        raise BudgetError(
            f"could not {what}: the process was killed",
            why="it got SIGKILL; with no other program killing it, that is the system running out of memory",
            fix="close other programs, or convert with --max-memory to take the leaner path",
        )
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    why = _last_lines(log)
    raise ChildDeathError(f"could not {what}: the process died of {name}", why=why, fix=_read_log(log, "its whole output"), cause=name)


def _raise_again(what: str, error: dict[str, Any], log: BinaryIO) -> NoReturn:
    kind = getattr(toolkit.errors, error["kind"], None)
    if isinstance(kind, type) and issubclass(kind, ToolkitError):
        raise kind(error["what"], why=error["why"], fix=error["fix"])
    if error["kind"] == MEMORY_LIMIT:  # the limits of `confinement` end it either by a signal or by this
        why = f"{MEMORY_LIMIT}: {error['what'] or 'an allocation failed'}"
        raise ChildDeathError(f"could not {what}: it ran out of memory", why=why, fix=_read_log(log, "the traceback"), cause=MEMORY_LIMIT)
    raise ToolkitError(f"could not {what}", why=f"{error['kind']}: {error['what']}", fix=_read_log(log, "the traceback"))


def _last_lines(log: BinaryIO) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_LOG_BYTES))
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-LAST_LOG_LINES:]) or "it printed nothing"


def _read_log(log: BinaryIO, holds: str) -> str:
    """Keep a child's output among the last few in the cache folder; returns the advice to read it."""
    log.seek(0)
    try:
        folder = cache_directory("logs")
        with tempfile.NamedTemporaryFile(dir=folder, prefix="child-", suffix=".log", delete=False) as kept:
            shutil.copyfileobj(log, kept)
        for old in sorted(folder.glob("child-*.log"), key=lambda path: path.stat().st_mtime_ns)[:-MOST_LOGS]:
            old.unlink(missing_ok=True)
    except (OSError, ToolkitError):
        return "run it again with --debug, and with a cache folder that can be written to, where its output is kept"
    return f"read {kept.name}, which holds {holds}"


def _main(function: str, result_fd: int, parent_pid: int) -> None:
    _die_with(parent_pid)
    arguments = json.loads(sys.stdin.buffer.read())
    module, _, name = function.partition(":")
    try:
        answer = {"result": getattr(importlib.import_module(module), name)(**arguments)}
    except ToolkitError as error:
        answer = {"error": {"kind": type(error).__name__, "what": error.what, "why": error.why, "fix": error.fix}}
    except Exception as error:
        import traceback

        traceback.print_exc()
        answer = {"error": {"kind": type(error).__name__, "what": str(error)[:500]}}
    with os.fdopen(result_fd, "wb") as stream:
        stream.write(json.dumps(answer).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # native libraries that crash while unloading must not turn a finished result into a failure


def _die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies, so that a killed conversion leaves nobody writing."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent_pid:
            os._exit(1)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
