"""What native code writes to stderr, as the process sees it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LOUD = """
import logging, os, sys
from toolkit.speech.quiet import quiet_native
{before}
print("ours, before", file=sys.stderr, end=" ")
with quiet_native():
    os.write(2, b"the library's ")
os.write(2, b"ours, after")
print("done")
"""


def run(before: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LOUD.format(before=before)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(
    ("before", "shown"),
    [("", "ours, before ours, after"), ("logging.basicConfig(level=logging.DEBUG)", "ours, before the library's ours, after")],
)
def test_the_librarys_lines_are_dropped_and_ours_are_not(before: str, shown: str) -> None:
    done = run(before, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, shown)


def test_where_there_is_no_stderr_nothing_is_dropped() -> None:
    done = run("os.write = lambda *_: None", preexec_fn=lambda: os.close(2))
    assert (done.returncode, done.stdout) == (0, "ours, before done\n")
