"""The engine's own process: loads one bundle, does what the host asks over a pipe, and ends when the host does.

Threads: the main one carries out calls in their order; one reads the pipe, so that `cancel` and the host's end are never
waited for; one ends streams, which asks the engine for its counts outside of its own callback; one says that it is alive.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.backends.base import StreamEnd
from toolkit.errors import ToolkitError
from toolkit.helper_processes import helpers_cpu_s
from toolkit.metrics import measure_peak_rss_bytes, measure_rss_bytes
from toolkit.worker_frames import FrameError, FrameReader, pack_frame
from toolkit.worker_values import decode, encode

BEAT_S = 1.0
_MOST_LOG_CHARACTERS = 10_000
_PARTS = "ask for it in parts"
_AT_ONCE = ("cancel", "hold", "release")  # may not wait behind a call that runs
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, linux/prctl.h
_OOM_SCORE = 500  # of -1000 to 1000: when memory runs out the kernel takes this process and leaves the app alone


class Host:
    """Object 0: what the host can ask before there is an engine."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate

    def hold(self) -> None:
        """Let no text pass, where no signal stops this process: its engine's thread waits with the next piece."""
        self._gate.clear()

    def release(self) -> None:
        """Let text pass again."""
        self._gate.set()

    def open_engine(self, backend: str, path: str, context_length: int, threads: int, options: dict[str, Any]) -> Any:
        """Load a bundle whose files the host has checked; returns the backend's NativeEngine."""
        from toolkit.backends import load_backend
        from toolkit.bundle import Bundle

        return load_backend(backend).open_engine(Bundle.unchecked(path), context_length=context_length, threads=threads, **options)


class Worker:
    """State of the process. Messages: docs/guides/isolation.md."""

    def __init__(self, commands: int, events: int) -> None:
        self._commands, self._events = commands, events
        self.gate = threading.Event()
        self.gate.set()
        self._objects: dict[int, Any] = {0: Host(self.gate)}
        self._n_objects = 0
        self._calls: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[tuple[Any, int, StreamEnd]] = queue.SimpleQueue()
        self._writing, self._closing = threading.Lock(), threading.Lock()
        self._n_running = 0
        self._running = threading.Condition()

    def serve(self) -> None:
        """Work until the host is gone."""
        for target in (self._read, self._finish_streams, self._beat):
            threading.Thread(target=target, daemon=True).start()
        while True:
            self._carry_out(self._calls.get())

    def _read(self) -> None:
        reader = FrameReader()
        while data := os.read(self._commands, 1 << 16):
            for message in reader.feed(data):
                if message["method"] in _AT_ONCE:
                    self._carry_out(message)
                else:
                    self._count(+1)
                    self._calls.put(message)
        os._exit(0)  # the host closed us or ended; native code may be in the middle of anything

    def _carry_out(self, message: dict[str, Any]) -> None:
        number = message.get("call")
        try:
            answer = {"value": self._call(message)}
        except ToolkitError as error:
            answer = {"error": {"kind": type(error).__name__, "what": error.what, "why": error.why, "fix": error.fix}}
        except BaseException as error:
            answer = {"error": {"kind": type(error).__name__, "what": "", "why": f"{type(error).__name__}: {error}"[:2000], "fix": ""}}
        if number is not None:
            self._reply(number, answer)
        if message["method"] not in _AT_ONCE:
            self._count(-1)

    def _reply(self, number: int, answer: dict[str, Any]) -> None:
        try:
            self._send({"reply": number, **answer})
        except FrameError as error:  # nothing of it was sent: the host can be told instead
            self._send(
                {"reply": number, "error": {"kind": "EngineError", "what": "the result is too long", "why": str(error), "fix": _PARTS}}
            )

    def _call(self, message: dict[str, Any]) -> Any:
        target = self._objects.get(message["object"])
        method = message["method"]
        if target is None:
            return None  # closed before; a late `cancel` or `close` finds nothing to do
        sinks = [StreamSink(self, target, number) for number in message.get("sinks", ())]
        arguments = decode(message["arguments"], callback=lambda index: sinks[index])
        options = decode(message["options"], callback=lambda index: sinks[index])
        if method == "close" and message["object"]:
            with self._closing:  # not while it is asked for its counts: they would be read from freed memory
                del self._objects[message["object"]]
        try:
            result = getattr(target, method)(*arguments, **options)
        except BaseException:
            for _ in sinks:
                self._count(-1)
            raise
        return encode(result, on_object=self._keep)

    def _keep(self, item: Any) -> int:
        self._n_objects += 1
        self._objects[self._n_objects] = item
        return self._n_objects

    def end_stream(self, target: Any, number: int, end: StreamEnd) -> None:
        """From a sink: the stream is over."""
        self._ends.put((target, number, end))

    def _finish_streams(self) -> None:
        """Each end goes out with what the engine counted, so that the host need not ask for it."""
        while True:
            target, number, end = self._ends.get()
            counts = self._counts(target)
            self.send_event(number, end, counts=encode(counts), peak_rss=measure_peak_rss_bytes())
            self._count(-1)

    def _counts(self, target: Any) -> Any:
        with self._closing:
            if not any(kept is target for kept in self._objects.values()):
                return None
            try:
                return target.counts()
            except Exception:  # an engine without figures; the host counts by itself
                return None

    def send_event(self, number: int, event: Any, **facts: Any) -> None:
        """One event of a stream."""
        self._send({"event": number, "value": encode(event), **facts})

    def send_log(self, name: str, level: int, text: str) -> None:
        """One log record."""
        self._send({"log": name, "level": level, "text": text[:_MOST_LOG_CHARACTERS]})

    def count_stream(self) -> None:
        """A stream begins."""
        self._count(+1)

    def _count(self, step: int) -> None:
        with self._running:
            self._n_running += step
            self._running.notify()

    def _beat(self) -> None:
        """While there is work: a sign of life a second, with what tells work from waiting. Else nothing wakes up."""
        while True:
            with self._running:
                self._running.wait_for(lambda: self._n_running > 0)
            self._send({"beat": time.process_time() + helpers_cpu_s(), "rss": measure_rss_bytes()})
            time.sleep(BEAT_S)

    def _send(self, message: dict[str, Any]) -> None:
        data = pack_frame(message)
        with self._writing:
            try:
                while data:
                    data = data[os.write(self._events, data) :]
            except OSError:
                os._exit(0)  # nobody listens any more


class StreamSink:
    """Stands in for the host's sink: passes pieces of text on at once, on the engine's thread."""

    def __init__(self, worker: Worker, target: Any, number: int) -> None:
        self._worker, self._target, self._number = worker, target, number
        worker.count_stream()

    def __call__(self, event: Any) -> None:
        if isinstance(event, StreamEnd):
            self._worker.end_stream(self._target, self._number, event)
        else:
            self._worker.gate.wait()
            self._worker.send_event(self._number, event)


class LogSender(logging.Handler):
    """Hands log records to the host, whose handlers the user knows."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        self._worker.send_log(record.name, record.levelno, record.getMessage())


def main(arguments: list[str]) -> None:
    """Entry point: `commands` and `events` are pipe ends, then the host's pid, the CPUs to keep to, comma separated, and its
    log level."""
    commands, events, host_pid = (int(argument) for argument in arguments[:3])
    confine(host_pid, [int(cpu) for cpu in arguments[3].split(",") if cpu])
    worker = Worker(commands, events)
    logging.basicConfig(level=int(arguments[4]), handlers=[LogSender(worker)])
    worker.serve()


def confine(host_pid: int, cpus: list[int]) -> None:
    """End with the host, leave no core file of gigabytes, be killed before the host is, keep to the CPUs of the plan."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's to handle
    attempts: list[Callable[[], object]] = [_forbid_core_files, _volunteer_for_the_oom_killer]
    if cpus and hasattr(os, "sched_setaffinity"):
        attempts.append(lambda: os.sched_setaffinity(0, cpus))
    for attempt in attempts:
        try:
            attempt()
        except (OSError, ValueError, ImportError):
            pass  # a system without it runs as well
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)  # of the host's thread that waits for us, which lives as long as it
        if os.getppid() != host_pid:
            os._exit(1)


def _forbid_core_files() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _volunteer_for_the_oom_killer() -> None:
    if sys.platform == "linux":
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE), encoding="ascii")
