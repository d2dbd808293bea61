"""Messages, values, causes of death and the watch, without a process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.toolkit.machine_root import V1_MOUNTS, V2_MOUNT, machine_root, own_groups
from toolkit.backends.base import Counts, Message, Sampling, StreamEnd
from toolkit.errors import EngineError
from toolkit.free_memory import FreeMemory
from toolkit.worker_death import CrashCause, OomCounters, explain_exit, raised, read_oom_counters
from toolkit.worker_frames import MAX_FRAME_BYTES, FrameError, FrameReader, pack_frame
from toolkit.worker_main import Worker
from toolkit.worker_values import Handle, TransferError, decode, encode
from toolkit.worker_watch import MemoryWatch, Watch, WorkerLimits

JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=4), max_leaves=8)


@given(st.lists(st.dictionaries(st.text(max_size=8), JSON, max_size=4), max_size=5), st.integers(1, 7))
def test_messages_arrive_whole_however_the_pipe_cuts_them(messages: list[dict[str, Any]], step: int) -> None:
    data = b"".join(pack_frame(message) for message in messages)
    reader, arrived = FrameReader(), list[dict[str, Any]]()
    for start in range(0, len(data), step):
        arrived += reader.feed(data[start : start + step])
    assert arrived == messages


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    try:
        assert all(isinstance(message, dict) for message in FrameReader().feed(data))
    except FrameError:
        pass


@pytest.mark.parametrize(
    "data",
    [
        (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        pack_frame({})[:4] + b"[]",
        (7).to_bytes(4, "big") + b"garbage",
        (400).to_bytes(4, "big") + b"[" * 400,
        (2).to_bytes(4, "big") + b"\xff\xfe",
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        list(FrameReader().feed(data))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3.5,
        "Ж\ud800",
        [1, [2, "x"]],
        {"a": [1], "$": "body"},
        b"\x00\xff",
        Message("user", "hi"),
        Sampling(0.5, seed=7),
        StreamEnd("broken"),
        Counts(1, 2, None, 3.0),
        [Message("user", "a"), {"x": b"y"}],
    ],
)
def test_values_survive_the_way(value: Any) -> None:
    [message] = FrameReader().feed(pack_frame({"value": encode(value)}))
    assert decode(message["value"]) == value


def test_a_result_too_long_to_send_is_told_and_does_not_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.worker_frames.MAX_FRAME_BYTES", 300)
    reader, writer = os.pipe()
    try:
        Worker(reader, writer)._reply(7, {"value": "x" * 1000})
        [message] = FrameReader().feed(os.read(reader, 4096))
    finally:
        os.close(reader)
        os.close(writer)
    error = raised(message["error"], "bundle")
    assert message["reply"] == 7 and isinstance(error, EngineError) and len(str(error).splitlines()) == 3


def test_an_object_stays_there_and_is_described() -> None:
    class Thing:
        size = 3

        def work(self) -> None:
            """Nothing."""

        @property
        def broken(self) -> int:
            raise OSError("cannot be told now")

    kept: list[Any] = []
    handle = decode(encode(Thing(), on_object=lambda item: kept.append(item) or 41))
    assert isinstance(handle, Handle) and (handle.number, handle.methods, handle.values) == (41, {"work"}, {"size": 3})
    assert isinstance(kept[0], Thing)
    with pytest.raises(TransferError, match="Thing"):
        encode(Thing())


@given(st.recursive(JSON, lambda inner: st.dictionaries(st.sampled_from(["$", "body", "x"]), inner, max_size=3), max_leaves=6))
def test_whatever_the_other_side_says_is_a_value_or_refused(data: Any) -> None:
    try:
        decode(data)
    except TransferError:
        pass


@pytest.mark.parametrize("tag", ["Popen", "annotations", "_private", "Backend", 3, None])
def test_no_class_but_the_contracts_data_is_made(tag: Any) -> None:
    with pytest.raises(TransferError):
        decode({"$": tag, "body": {}})


CALM = OomCounters(5, 2)


@pytest.mark.parametrize(
    ("code", "after", "cause"),
    [
        (0, CALM, CrashCause.EXIT),
        (3, CALM, CrashCause.EXIT),
        (-signal.SIGSEGV, CALM, CrashCause.SIGNAL),
        (-signal.SIGABRT, OomCounters(9, 9), CrashCause.SIGNAL),
        (-signal.SIGTERM, CALM, CrashCause.KILLED),
        (-signal.SIGKILL, CALM, CrashCause.KILLED),
        (-signal.SIGKILL, OomCounters(6, 2), CrashCause.KILLED),
        (-signal.SIGKILL, OomCounters(6, None), CrashCause.MEMORY),
        (-signal.SIGKILL, OomCounters(5, 3), CrashCause.MEMORY),
        (-signal.SIGKILL, OomCounters(None, None), CrashCause.MEMORY),
        (-64, CALM, CrashCause.SIGNAL),
    ],
)
def test_a_death_is_explained_by_exit_code_and_the_kernels_counters(code: int, after: OomCounters, cause: CrashCause) -> None:
    assert explain_exit(code, CALM, after)[0] is cause


def test_a_kill_while_memory_was_short_is_memorys_though_nobody_counted_it() -> None:
    cause, why = explain_exit(-signal.SIGKILL, CALM, CALM, shortage="free memory was down to 9 MiB")
    assert cause is CrashCause.MEMORY and "down to 9 MiB" in why
    assert explain_exit(-signal.SIGTERM, CALM, CALM, shortage="free memory was down to 9 MiB")[0] is CrashCause.KILLED


def test_a_shortage_is_remembered_for_as_long_as_it_may_have_been_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"bytes": 20}
    monkeypatch.setattr("toolkit.worker_watch.free_memory", lambda: FreeMemory(free["bytes"], "free memory"))
    monkeypatch.setattr("toolkit.worker_watch.total_memory_bytes", lambda: 1000)
    watch = MemoryWatch()
    watch.look(0.0)
    free["bytes"] = 900  # the process is dead, and what it held is free again
    watch.look(0.5)
    assert watch.shortage(1.0) == "free memory was down to 20 B"
    assert watch.shortage(4.0) is None
    watch.look(5.0)
    assert watch.shortage(5.0) is None


def test_kills_are_counted_in_both_versions_of_control_groups(tmp_path: Path) -> None:
    files = own_groups("4:memory:/job\n", V1_MOUNTS)
    files |= {"sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "proc/vmstat": "oom_kill 8\n"}
    assert read_oom_counters(machine_root(tmp_path / "v1", files=files)) == OomCounters(8, 3)
    files = own_groups("0::/job\n", V2_MOUNT) | {"sys/fs/cgroup/job/memory.events": "oom 1\noom_kill 1\n"}
    assert read_oom_counters(machine_root(tmp_path / "v2", files=files)) == OomCounters(None, 1)


def test_errors_of_ours_come_back_as_themselves_and_others_are_named() -> None:
    ours = raised({"kind": "FormatError", "what": "a", "why": "b", "fix": "c"}, "bundle")
    assert (type(ours).__name__, ours.exit_code, ours.fix) == ("FormatError", 4, "c")
    other = raised({"kind": "SystemExit", "what": "", "why": "SystemExit: 3", "fix": ""}, "bundle")
    assert "bundle" in other.what and other.fix
    memory = raised({"kind": "MemoryError", "what": "", "why": "MemoryError", "fix": ""}, "bundle")
    assert getattr(memory, "cause", None) is CrashCause.MEMORY


LIMITS = WorkerLimits(silence_s=10, stall_s=30, result_s=100)


def watched(until: int, *, cpu_per_s: float, results_every: int = 0, beats: bool = True) -> str | None:
    """The verdict on a process watched from second 0 on."""
    watch = Watch()
    watch.reset(0.0)
    for second in range(1, until + 1):
        if beats:
            watch.beat(float(second), second * cpu_per_s)
        if results_every and second % results_every == 0:
            watch.result(float(second))
        if (why := watch.verdict(float(second), LIMITS)) is not None:
            return f"{second}: {why}"
    return None


def test_a_process_that_computes_or_answers_does_not_hang() -> None:
    assert watched(99, cpu_per_s=0.9) is None
    assert watched(500, cpu_per_s=0.9, results_every=60) is None
    assert watched(500, cpu_per_s=0.001, results_every=20) is None


def test_silence_waiting_and_endless_work_are_told_apart() -> None:
    assert watched(60, cpu_per_s=0.0, beats=False) == "11: no sign of life for 10 s"
    assert watched(60, cpu_per_s=0.001) == "32: no result and no work for 30 s"
    assert watched(200, cpu_per_s=1.9) == "101: no result for 100 s"
