"""A result that cannot be written is an error of three lines, whatever the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.cli import main
from toolkit.manifest import MANIFEST_NAME

NO_FULL_DEVICE = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")


@NO_FULL_DEVICE
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_full_stdout_is_named_and_shows_no_traceback(flags: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = run(["models", "list", *flags], stdout=full)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "stdout cannot be written"
    assert "Traceback" not in done.stderr and "fix:" in done.stderr


def test_a_closed_stdout_is_refused_before_any_work() -> None:
    done = run(["models", "list", "--json"], stdout=None, preexec_fn=lambda: os.close(1))
    assert done.returncode == 2
    assert "no stdout" in done.stderr


def test_a_reader_that_leaves_early_is_no_error_message() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run(["models", "list"], stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_path_too_long_for_the_system_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "x" * 5000]) == 2
    assert "too long" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_as_manifest_is_refused_instead_of_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / MANIFEST_NAME)
    assert main(["run", str(tmp_path), "hello", "--json"]) == 4
    assert "not a regular file" in json.loads(capsys.readouterr().out)["error"]["why"]


def run(arguments: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "toolkit.cli", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False, **options)  # type: ignore[call-overload, no-any-return]
