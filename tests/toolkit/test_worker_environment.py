"""The environment an engine's process starts with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.toolkit.isolated import wait_until
from toolkit.worker_start import can_isolate, start_process

pytestmark = pytest.mark.skipif(
    not can_isolate() or not Path("/proc/self/environ").exists(), reason="needs processes, and a system that shows their environment"
)


def environment_of_a_worker() -> dict[str, str]:
    """What a fresh engine's process was given."""
    process, events = start_process([])
    try:
        environ = Path(f"/proc/{process.pid}/environ")  # empty for a moment: exec tells its caller before the new image has its own
        wait_until(lambda: environ.read_bytes() != b"", "the environment of the process")
        entries = environ.read_bytes().decode().split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)
    finally:
        process.kill()
        process.communicate()
        os.close(events)


def test_freed_memory_goes_back_to_the_system() -> None:
    given = environment_of_a_worker()
    assert given["MALLOC_TRIM_THRESHOLD_"] == given["MALLOC_MMAP_THRESHOLD_"] == str(2**20)


def test_what_the_user_set_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "4096")
    monkeypatch.setenv("SEEN_BY_THE_ENGINE", "yes")
    given = environment_of_a_worker()
    assert (given["MALLOC_TRIM_THRESHOLD_"], given["SEEN_BY_THE_ENGINE"]) == ("4096", "yes")
