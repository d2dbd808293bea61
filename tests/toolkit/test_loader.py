"""An engine whose process is gone is loaded again, on a smaller plan, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_bundle import CONTEXT_LENGTH, tiny_bundle
from tests.toolkit.isolated import HANG_S, LONG, PROMPT, say, wait_until, worker_pid
from toolkit.bundle import Bundle
from toolkit.engine import Engine
from toolkit.errors import BudgetError, FormatError
from toolkit.worker_death import CrashCause, EngineCrashed
from toolkit.worker_start import can_isolate
from toolkit.worker_watch import WorkerLimits

pytestmark = [
    pytest.mark.usefixtures("module_cache", "no_notes"),
    pytest.mark.skipif(not can_isolate(), reason="this platform lets an app start no process"),
]


def test_an_answer_begun_again_after_a_death_equals_one_that_was_never_interrupted(engine: Engine, chat_bundle: Path) -> None:
    session = engine.session()
    first = say(session, max_tokens=30)
    os.kill(worker_pid(engine), signal.SIGSEGV)
    wait_until(lambda: engine.crash is not None, "its death")
    second = say(session, "and the valve", max_tokens=30)
    assert engine.n_restarts == 1
    with Engine.open(chat_bundle, context_length=CONTEXT_LENGTH) as other:
        calm = other.session()
        assert (say(calm, max_tokens=30), say(calm, "and the valve", max_tokens=30)) == (first, second)


def test_a_process_that_dies_again_and_again_is_not_started_for_ever(engine: Engine) -> None:
    session = engine.session()
    for _ in range(3):
        pieces = session.send(PROMPT, max_tokens=LONG)
        next(pieces)
        os.kill(worker_pid(engine), signal.SIGABRT)
        with pytest.raises(EngineCrashed):
            list(pieces)
    for _ in range(2):
        with pytest.raises(EngineCrashed, match="SIGABRT"):
            say(session)
    assert engine.n_restarts == 2


@pytest.fixture
def memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL reads as the kernel's, which counts its kills."""
    monkeypatch.setattr("toolkit.worker.explain_exit", lambda *_, **__: (CrashCause.MEMORY, "the kernel killed it"))


def test_killed_for_memory_it_starts_once_more_on_a_smaller_plan(chat_bundle: Path, memory_is_short: None) -> None:
    with Engine.open(chat_bundle, expected_tokens=CONTEXT_LENGTH) as engine:
        assert engine.context_length == CONTEXT_LENGTH
        session = engine.session()
        for context_length in (2048, 2048):
            pieces = session.send(PROMPT, max_tokens=1900)
            next(pieces)
            os.kill(worker_pid(engine), signal.SIGKILL)
            with pytest.raises(EngineCrashed) as caught:
                list(pieces)
            assert caught.value.cause is CrashCause.MEMORY
            if engine.n_restarts == 0:
                assert say(session, max_tokens=20)
                assert engine.context_length == engine.max_context_length == context_length
        with pytest.raises(EngineCrashed):
            say(session)
        assert engine.n_restarts == 1, "never a second time by itself"


def test_killed_for_memory_a_fixed_context_has_no_smaller_plan(chat_bundle: Path, memory_is_short: None) -> None:
    with Engine.open(chat_bundle, context_length=CONTEXT_LENGTH) as engine:
        session = engine.session()
        pieces = session.send(PROMPT, max_tokens=LONG)
        next(pieces)
        os.kill(worker_pid(engine), signal.SIGKILL)
        with pytest.raises(EngineCrashed):
            list(pieces)
        with pytest.raises(EngineCrashed, match="the kernel killed it"):
            say(session)
    with pytest.raises(BudgetError, match="not loaded again at 4096 tokens"):
        Engine.open(chat_bundle, context_length=CONTEXT_LENGTH)


_IN_GROUP = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
from toolkit.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A version 1 memory group of 30 MB, in which a host fits and an engine does not."""
    group = Path(f"/sys/fs/cgroup/memory/toolkit-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("30000000")
    except OSError:
        pytest.skip("needs root and a version 1 memory control group")
    yield group
    wait_until(lambda: is_removed(group), "the end of the group's last process")


def is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:  # a process of it is still being taken down
        return not group.exists()
    return True


def test_a_plan_larger_than_the_memory_group_is_refused_and_forced_the_host_survives(chat_bundle: Path, memory_group: Path) -> None:
    command = [sys.executable, "-c", _IN_GROUP, str(memory_group), "run", str(chat_bundle), PROMPT, "--max-tokens", "50"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert refused.returncode == 3 and "control group's memory limit" in refused.stderr
    forced = subprocess.run([*command, "--force"], capture_output=True, text=True, check=False, timeout=HANG_S)
    assert forced.returncode == 1, "the host itself was killed"
    assert "the kernel killed it because its control group's memory was full" in forced.stderr


def test_a_bundle_that_does_not_load_in_time_is_given_up(chat_bundle: Path) -> None:
    with pytest.raises(EngineCrashed, match="took longer") as caught:
        Engine.open(chat_bundle, context_length=192, limits=WorkerLimits(start_s=0.01))
    assert caught.value.cause is CrashCause.START and "loading model.litertlm" in caught.value.last_event


def test_a_plan_that_ended_its_process_is_not_loaded_again_by_itself(chat_bundle: Path) -> None:
    with pytest.raises(EngineCrashed):
        Engine.open(chat_bundle, context_length=320, limits=WorkerLimits(start_s=0.01))
    with pytest.raises(BudgetError, match="not loaded again at 320 tokens") as caught:
        Engine.open(chat_bundle, context_length=320)
    assert "start" in caught.value.why and "--force" in caught.value.fix
    with Engine.open(chat_bundle, context_length=384) as other:
        assert other.context_length == 384, "another plan is not suspected"
    with Engine.open(chat_bundle, context_length=320, force=True) as forced:
        assert say(forced.session(), max_tokens=5)
    with Engine.open(chat_bundle, context_length=320) as trusted:
        assert trusted.context_length == 320, "it has answered since"


def test_without_a_fixed_context_a_smaller_one_is_taken_instead(chat_bundle: Path) -> None:
    with pytest.raises(EngineCrashed):
        Engine.open(chat_bundle, expected_tokens=640, limits=WorkerLimits(start_s=0.01))
    with Engine.open(chat_bundle, expected_tokens=640) as engine:
        assert engine.context_length == engine.max_context_length == 320 and say(engine.session(), max_tokens=5)


def test_a_refused_file_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"garbage" * 1000)
    folder = tiny_bundle(tmp_path / "bundle", model=tmp_path / "garbage")
    for _ in range(2):
        with pytest.raises(FormatError, match="model.litertlm") as caught:
            Engine.open(folder, isolated=True)
        assert "magic" in caught.value.why


def test_a_damaged_header_ends_at_most_the_engines_process(tmp_path: Path, chat_bundle: Path) -> None:
    sound = Bundle.open(chat_bundle)
    data = bytearray(sound.entry_path.read_bytes())
    data[8:64] = bytes(byte ^ 0xFF for byte in data[8:64])
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "manifest.json").write_bytes((chat_bundle / "manifest.json").read_bytes())
    (folder / "model.litertlm").write_bytes(data)
    with pytest.raises((EngineCrashed, FormatError)):
        Engine.open(Bundle(folder, sound.manifest), isolated=True)  # not `Bundle.open`, whose hashes would have found it


@pytest.mark.parametrize(("cause", "is_held_against_it"), [(CrashCause.KILLED, False), (CrashCause.SIGNAL, True)])
def test_a_load_that_somebody_killed_says_nothing_of_the_plan(
    chat_bundle: Path, cause: CrashCause, is_held_against_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise EngineCrashed("the engine crashed", fix="none", cause=cause, last_event="loading")

    with monkeypatch.context() as patch:
        patch.setattr("toolkit.worker_proxy.IsolatedBackend.open_engine", die)
        with pytest.raises(EngineCrashed):
            Engine.open(chat_bundle, context_length=448)
    if is_held_against_it:
        with pytest.raises(BudgetError, match="not loaded again"):
            Engine.open(chat_bundle, context_length=448)
    else:
        with Engine.open(chat_bundle, context_length=448) as engine:
            assert engine.context_length == 448
