"""What tests of engines in a process of their own share."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.tiny_bundle import CONTEXT_LENGTH
from toolkit.engine import Engine
from toolkit.session import Session
from toolkit.worker_proxy import RemoteEngine

PROMPT = "check the pump"
LONG = CONTEXT_LENGTH - 100  # seconds of an answer: whoever is to be hit in its middle must not be through
HANG_S = 120.0  # what takes longer hangs; nothing is measured by it
SILENCE_S = 3.0  # a busy machine delays a sign of life, which comes each second


def worker_pid(engine: Engine) -> int:
    """The process an engine lives in."""
    assert isinstance(engine.native, RemoteEngine)
    return engine.native.worker.pid


def say(session: Session, text: str = PROMPT, **options: int) -> str:
    """The whole answer."""
    return "".join(piece.text for piece in session.send(text, **options))


def wait_until(happened: Callable[[], bool], what: str) -> None:
    """Wait for what must happen; fails when it never does."""
    deadline = time.monotonic() + HANG_S
    while not happened():
        assert time.monotonic() < deadline, f"{what} never happened"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """A zombie that its new parent has yet to bury is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
