"""How an engine's process begins, where it runs, and what it leaves behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.toolkit.isolated import HANG_S, is_alive, say, wait_until, worker_pid
from toolkit.bundle import Bundle
from toolkit.engine import Engine
from toolkit.errors import EngineError
from toolkit.worker_proxy import RemoteEngine
from toolkit.worker_start import can_isolate
from toolkit.worker_watch import WorkerLimits

pytestmark = [
    pytest.mark.usefixtures("module_cache", "no_notes"),
    pytest.mark.skipif(not can_isolate(), reason="this platform lets an app start no process"),
]


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
    assert is_alive(pid) or sys.platform != "linux"
    host.send_signal(number)
    host.communicate(timeout=HANG_S)
    wait_until(lambda: not is_alive(pid), "the end of its engine")


def test_an_engine_opened_in_a_thread_outlives_it(chat_bundle: Path) -> None:
    opened: list[Engine] = []
    thread = threading.Thread(target=lambda: opened.append(Engine.open(chat_bundle, context_length=256)))
    thread.start()
    thread.join()
    time.sleep(0.3)  # the kernel's signal at a thread's end, if it were sent, would have come
    with opened[0] as engine:
        assert say(engine.session(), max_tokens=10) and engine.n_restarts == 0


def _answer_of(bundle: str) -> str:
    with Engine.open(bundle, context_length=256) as engine:
        assert engine.is_isolated
        return say(engine.session(), max_tokens=10)


def test_it_works_in_a_spawned_process(chat_bundle: Path, engine: Engine) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_answer_of, [str(chat_bundle)]) == say(engine.session(), max_tokens=10)


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


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
def test_opening_and_closing_leaves_nothing_open(chat_bundle: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    counts = []
    for _ in range(4):
        with Engine.open(chat_bundle, context_length=128) as engine:
            say(engine.session(), max_tokens=4)
        wait_until(lambda: not any(t.name.startswith("engine-") for t in threading.enumerate()), "the end of its threads")
        counts.append(descriptors())
    assert len(set(counts)) == 1, counts


def test_a_process_that_cannot_be_started_is_named(chat_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EngineError, match="no process") as caught:
        Engine.open(chat_bundle, context_length=128)
    assert "isolated=False" in caught.value.fix
