"""What ends an engine's process does not end ours, and is named."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_bundle import CONTEXT_LENGTH, tiny_bundle
from toolkit.backends.base import Message
from toolkit.bundle import Bundle
from toolkit.engine import Engine
from toolkit.errors import BudgetError, EngineError, UsageError
from toolkit.load_mark import forget_all
from toolkit.session import FinishReason, Session
from toolkit.worker_death import CrashCause, EngineCrashed
from toolkit.worker_proxy import RemoteEngine
from toolkit.worker_start import can_isolate
from toolkit.worker_watch import WorkerLimits

pytestmark = [
    pytest.mark.usefixtures("module_cache"),
    pytest.mark.skipif(not can_isolate(), reason="this platform lets an app start no process"),
]
PROMPT = "check the pump"
LONG = CONTEXT_LENGTH - 100  # seconds of an answer: whoever is to be hit in its middle must not be through


def worker_pid(engine: Engine) -> int:
    assert isinstance(engine.native, RemoteEngine)
    return engine.native.worker.pid


def say(session: Session, text: str = PROMPT, **options: int) -> str:
    return "".join(piece.text for piece in session.send(text, **options))


@pytest.fixture(autouse=True)
def no_notes(module_cache: Path) -> None:
    """What one test did to a plan is not held against it in the next."""
    forget_all()


@pytest.fixture
def engine(chat_bundle: Path) -> Iterator[Engine]:
    with Engine.open(chat_bundle, context_length=CONTEXT_LENGTH) as engine:
        yield engine


def test_an_engine_has_a_process_of_its_own_unless_asked_otherwise(chat_bundle: Path, engine: Engine) -> None:
    assert engine.is_isolated and worker_pid(engine) not in (0, os.getpid())
    assert os.getsid(worker_pid(engine)) == worker_pid(engine), "Ctrl-C in the terminal must not reach it"
    with Engine.open(chat_bundle, isolated=False) as inside:
        assert not inside.is_isolated
        assert say(inside.session(), max_tokens=20) == say(engine.session(), max_tokens=20)


@pytest.mark.parametrize(
    ("number", "cause"),
    [(signal.SIGSEGV, CrashCause.SIGNAL), (signal.SIGABRT, CrashCause.SIGNAL), (signal.SIGTERM, CrashCause.KILLED)],
)
def test_a_death_in_the_middle_of_an_answer_keeps_its_text_and_names_the_cause(
    engine: Engine, number: signal.Signals, cause: CrashCause
) -> None:
    session = engine.session()
    pieces = session.send(PROMPT, max_tokens=LONG)
    text = next(pieces).text + next(pieces).text
    os.kill(worker_pid(engine), number)
    with pytest.raises(EngineCrashed) as caught:
        for piece in pieces:
            text += piece.text
    assert caught.value.cause is cause and number.name in caught.value.why
    assert "pieces so far" in caught.value.last_event
    assert session.finish_reason is FinishReason.CRASHED
    assert session.messages == (Message("user", PROMPT), Message("assistant", text))
    assert session.metrics is not None and session.metrics.n_generated_tokens >= 2
    assert say(session, "and the valve", max_tokens=20), "the same session goes on in a new process"
    assert engine.n_restarts == 1 and session.metrics is not None and session.metrics.n_restarts == 1


def test_an_answer_begun_again_after_a_death_equals_one_that_was_never_interrupted(engine: Engine, chat_bundle: Path) -> None:
    session = engine.session()
    first = say(session, max_tokens=30)
    os.kill(worker_pid(engine), signal.SIGSEGV)
    time.sleep(0.2)
    second = say(session, "and the valve", max_tokens=30)
    with Engine.open(chat_bundle, context_length=CONTEXT_LENGTH) as other:
        calm = other.session()
        assert (say(calm, max_tokens=30), say(calm, "and the valve", max_tokens=30)) == (first, second)


def test_an_async_answer_ends_with_the_same_error(engine: Engine) -> None:
    async def ask() -> str:
        text = ""
        async for piece in engine.session().asend(PROMPT, max_tokens=LONG):
            if not text:
                os.kill(worker_pid(engine), signal.SIGSEGV)
            text += piece.text
        return text

    with pytest.raises(EngineCrashed, match="SIGSEGV"):
        asyncio.run(ask())


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
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.05)


def test_a_plan_larger_than_the_memory_group_is_refused_and_forced_the_host_survives(chat_bundle: Path, memory_group: Path) -> None:
    command = [sys.executable, "-c", _IN_GROUP, str(memory_group), "run", str(chat_bundle), PROMPT, "--max-tokens", "50"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 3 and "control group's memory limit" in refused.stderr
    forced = subprocess.run([*command, "--force"], capture_output=True, text=True, check=False)
    assert forced.returncode == 1, "the host itself was killed"
    assert "the kernel killed it because its control group's memory was full" in forced.stderr


def test_a_stopped_process_counts_as_hanging(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, context_length=CONTEXT_LENGTH, limits=WorkerLimits(silence_s=1.5)) as engine:
        pieces = engine.session().send(PROMPT, max_tokens=LONG)
        next(pieces)
        os.kill(worker_pid(engine), signal.SIGSTOP)
        with pytest.raises(EngineCrashed, match="no sign of life for 1.5 s") as caught:
            list(pieces)
        assert caught.value.cause is CrashCause.HANG and "stopped" in caught.value.why


def test_a_call_that_is_not_answered_counts_as_hanging_too(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, context_length=256, limits=WorkerLimits(silence_s=1.5)) as engine:
        os.kill(worker_pid(engine), signal.SIGSTOP)
        with pytest.raises(EngineCrashed, match="no sign of life"):
            engine.tokenize("x")


def test_an_idle_engine_may_be_idle_for_longer_than_the_limit(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, context_length=256, limits=WorkerLimits(silence_s=1.5, stall_s=1.5)) as engine:
        time.sleep(2.5)
        assert engine.tokenize("check") and engine.n_restarts == 0


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


def test_a_refused_file_is_the_engines_error_and_no_crash(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"garbage" * 1000)
    folder = tiny_bundle(tmp_path / "bundle", model=tmp_path / "garbage")
    for _ in range(2):
        with pytest.raises(EngineError, match="model.litertlm") as caught:
            Engine.open(folder, isolated=True)
        assert not isinstance(caught.value, EngineCrashed) and "magic" in caught.value.why


def test_a_damaged_header_ends_the_engines_process_only(tmp_path: Path, chat_bundle: Path) -> None:
    sound = Bundle.open(chat_bundle)
    data = bytearray(sound.entry_path.read_bytes())
    data[8:64] = bytes(byte ^ 0xFF for byte in data[8:64])
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "manifest.json").write_bytes((chat_bundle / "manifest.json").read_bytes())
    (folder / "model.litertlm").write_bytes(data)
    with pytest.raises(EngineError):
        Engine.open(Bundle(folder, sound.manifest), isolated=True)  # not `Bundle.open`, whose hashes would have found it


def test_cancelling_from_another_thread_ends_the_answer_and_leaves_the_session_usable(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, context_length=CONTEXT_LENGTH) as engine:
        session = engine.session()

        def cancel_when_it_answers() -> None:
            while not session.is_answering:
                time.sleep(0.001)
            session.cancel()

        threading.Thread(target=cancel_when_it_answers).start()
        say(session, "pump " * 2000, max_tokens=1500)
        assert session.finish_reason is FinishReason.CANCELLED
        assert say(session, max_tokens=10)


def test_cancelling_works_while_the_process_is_stopped(engine: Engine) -> None:
    session = engine.session()
    pieces = session.send(PROMPT, max_tokens=LONG)
    next(pieces)
    os.kill(worker_pid(engine), signal.SIGSTOP)
    session.cancel()
    assert list(pieces) == [] or session.finish_reason is FinishReason.CANCELLED
    engine.close()


def test_closing_ends_the_process_at_once_whatever_it_does(chat_bundle: Path) -> None:
    engine = Engine.open(chat_bundle, context_length=CONTEXT_LENGTH)
    pid = worker_pid(engine)
    next(engine.session().send(PROMPT, max_tokens=LONG))
    engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(UsageError, match="closed"):
        engine.tokenize("x")


def test_an_engine_nobody_holds_leaves_no_process(chat_bundle: Path) -> None:
    engine = Engine.open(chat_bundle, context_length=128)
    pid = worker_pid(engine)
    del engine
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


_HOST = """
import sys, time
from toolkit import Engine
engine = Engine.open(sys.argv[1], context_length=128)
print(engine.native.worker.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_process_ends_with_its_host(chat_bundle: Path, number: signal.Signals) -> None:
    host = subprocess.Popen([sys.executable, "-c", _HOST, str(chat_bundle)], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    pid = int(host.stdout.readline())
    assert Path(f"/proc/{pid}").exists() or sys.platform != "linux"
    host.send_signal(number)
    host.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while _is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    """A zombie that its new parent has yet to bury is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_engine_opened_in_a_thread_outlives_it(chat_bundle: Path) -> None:
    opened: list[Engine] = []
    thread = threading.Thread(target=lambda: opened.append(Engine.open(chat_bundle, context_length=256)))
    thread.start()
    thread.join()
    time.sleep(0.3)
    with opened[0] as engine:
        assert say(engine.session(), max_tokens=10) and engine.n_restarts == 0


def test_a_fork_does_not_inherit_the_engine(engine: Engine) -> None:
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            engine.tokenize("x")
            verdict = b"answered"
        except UsageError:
            verdict = b"refused"
        engine.close()  # must not end the parent's engine
        os.write(writer, verdict)
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 100) == b"refused"
    assert engine.tokenize("x") and engine.n_restarts == 0


def _answer_of(bundle: str) -> str:
    with Engine.open(bundle, context_length=256) as engine:
        assert engine.is_isolated
        return say(engine.session(), max_tokens=10)


def test_it_works_in_a_spawned_process(chat_bundle: Path, engine: Engine) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_answer_of, [str(chat_bundle)]) == say(engine.session(), max_tokens=10)


def test_a_process_that_outgrows_the_budget_is_ended(chat_bundle: Path) -> None:
    with Engine.open(chat_bundle, context_length=CONTEXT_LENGTH) as engine:
        assert isinstance(engine.native, RemoteEngine)
        engine.native.worker._limits = WorkerLimits(max_resident_bytes=2**20)
        pieces = engine.session().send(PROMPT, max_tokens=LONG)
        with pytest.raises(EngineCrashed, match="the budget is 1 MiB") as caught:
            list(pieces)
        assert caught.value.cause is CrashCause.MEMORY


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no process")
def test_the_process_keeps_to_the_cpus_of_the_plan(chat_bundle: Path) -> None:
    from toolkit.backends import load_backend
    from toolkit.worker_proxy import IsolatedBackend

    cpu = min(os.sched_getaffinity(0))
    backend = IsolatedBackend(load_backend("litert"), limits=WorkerLimits(), cpus=[cpu])
    native = backend.open_engine(Bundle.open(chat_bundle), context_length=128, threads=1)
    assert isinstance(native, RemoteEngine)
    assert os.sched_getaffinity(native.worker.pid) == {cpu}
    native.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has an OOM killer with scores")
def test_the_oom_killer_takes_the_engine_and_not_the_app(engine: Engine) -> None:
    score = int(Path(f"/proc/{worker_pid(engine)}/oom_score_adj").read_text())
    assert score > int(Path("/proc/self/oom_score_adj").read_text())
    limits = Path(f"/proc/{worker_pid(engine)}/limits").read_text()
    assert next(line for line in limits.splitlines() if line.startswith("Max core file size")).split()[4] == "0"


def test_warnings_of_the_process_reach_our_log(
    chat_bundle: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONDEVICE_TOOLKIT_CACHE", "/dev/null/none")
    with caplog.at_level(logging.WARNING), Engine.open(chat_bundle, context_length=128):
        pass
    assert any(record.name == "toolkit.backends.litert" and "cache" in record.message for record in caplog.records)


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
def test_opening_and_closing_leaves_nothing_open(chat_bundle: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    counts = []
    for _ in range(4):
        with Engine.open(chat_bundle, context_length=128) as engine:
            say(engine.session(), max_tokens=4)
        deadline = time.monotonic() + 10
        while threading.active_count() > 1 and any(t.name.startswith("engine-") for t in threading.enumerate()):
            assert time.monotonic() < deadline, "its threads must end with it"
            time.sleep(0.01)
        counts.append(descriptors())
    assert len(set(counts)) == 1, counts


def test_a_process_that_cannot_be_started_is_named(chat_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EngineError, match="no process") as caught:
        Engine.open(chat_bundle, context_length=128)
    assert "isolated=False" in caught.value.fix
