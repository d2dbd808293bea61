"""What the child-process tests run in a child."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from converters.confinement import confine
from converters.template_source import confined
from toolkit.errors import FormatError


def double(value: int) -> dict[str, Any]:
    print("noise that must not reach the parent")
    return {"doubled": 2 * value, "pid": os.getpid()}


def refuse() -> dict[str, Any]:
    raise FormatError("the thing is damaged", why="3 bytes are missing", fix="get it again")


def stumble() -> dict[str, Any]:
    raise KeyError("a defect")


def die(signal_number: int) -> dict[str, Any]:
    print("last words", flush=True)
    os.kill(os.getpid(), signal_number)
    return {}


def leave(code: int) -> dict[str, Any]:
    os._exit(code)


def wait_forever(note: str) -> dict[str, Any]:
    Path(note).write_text(str(os.getpid()))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(60)
    return {}


def count_for_ever(cpu_s: float) -> dict[str, Any]:
    confine(cpu_s=cpu_s, memory_bytes=2**30)
    while True:
        pass


def fill(n_bytes: int, memory_bytes: int) -> dict[str, Any]:
    confine(cpu_s=60, memory_bytes=memory_bytes)
    return {"n_bytes": len(bytes(n_bytes))}


def fill_for_template(n_bytes: int, memory_bytes: int) -> dict[str, Any]:
    with confined("the runtime", cpu_s=60, memory_bytes=memory_bytes):
        return {"n_bytes": len(bytes(n_bytes))}
