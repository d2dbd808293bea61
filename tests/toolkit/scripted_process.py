"""An engine's process that says what a test writes, on the pipes of a real one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

from toolkit.worker_start import start_command

# What every script may use: `write` sends text as one message, `frame` an object, `take` waits for the host's next one.
_PRELUDE = """
import json, os, sys, time
def write(text):
    data = text.encode()
    os.write({events}, len(data).to_bytes(4, "big") + data)
def frame(message):
    write(json.dumps(message))
def take():
    size = int.from_bytes(sys.stdin.buffer.read(4), "big")
    return json.loads(sys.stdin.buffer.read(size))
"""
Started = tuple[subprocess.Popen[bytes], int]


def scripted(script: str) -> Callable[[Sequence[int]], Started]:
    """Stands in for `toolkit.worker.start_process`."""

    def start(cpus: Sequence[int]) -> Started:
        return start_command(lambda child_end: [sys.executable, "-c", _PRELUDE.format(events=child_end) + script])

    return start
