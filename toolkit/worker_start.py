"""Starts an engine's process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

# glibc raises both by itself, to 32 MiB and more, each time a large block is freed, and then keeps what an engine frees after loading.
# Held at 1 MiB, Gemma 3 270M int4-g32 peaks at 366 instead of 388 x 10^6 bytes with 384 tokens, and answers as fast. Other
# allocators ignore them.
_GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}


def can_isolate() -> bool:
    """Whether this platform lets an app start a Python process: not iOS, not Android's apps, not a frozen executable."""
    is_app = hasattr(sys, "getandroidapilevel") or "ANDROID_PRIVATE" in os.environ or getattr(sys, "frozen", False)
    return os.name == "posix" and sys.platform != "ios" and not is_app and bool(sys.executable)


def start_process(cpus: Sequence[int]) -> tuple[subprocess.Popen[bytes], int]:
    """Start `toolkit.worker_main` with this process's import path, in a session of its own.

    Returns:
        The process, whose stdin takes commands and whose stderr is a pipe, and the descriptor its messages are read from.

    Raises:
        OSError: The system starts none.
    """
    root = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(dict.fromkeys([*sys.path, root]))
    code = "import sys; sys.path[:] = sys.argv[1].split(sys.argv[2]); from toolkit.worker_main import main; main(sys.argv[3:])"
    level = logging.getLogger("toolkit").getEffectiveLevel()

    def command(child_end: int) -> list[str]:
        facts = ("0", child_end, os.getpid(), ",".join(map(str, cpus)), level)
        return [sys.executable, "-c", code, paths, os.pathsep, *map(str, facts)]

    return start_command(command)


def start_command(command: Callable[[int], list[str]]) -> tuple[subprocess.Popen[bytes], int]:
    """As `start_process`; `command` gets the descriptor that the process writes its messages to."""
    events, child_end = os.pipe()
    try:
        process = subprocess.Popen(
            command(child_end),
            env={**_GIVE_BACK, **os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(child_end,),
            start_new_session=True,
            bufsize=0,
        )
    except BaseException:
        os.close(events)
        raise
    finally:
        os.close(child_end)
    return process, events
