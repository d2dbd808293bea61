"""The host's side of an engine's process: starts it, talks to it, watches it, and says what ended it."""

from __future__ import annotations

import logging
import os
import queue
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from toolkit.backends.base import Counts, StreamEnd
from toolkit.errors import EngineError, ToolkitError, UsageError
from toolkit.units import format_bytes
from toolkit.worker_death import FIXES, CrashCause, EngineCrashed, explain_exit, raised, read_oom_counters, thread_states
from toolkit.worker_frames import FrameError, FrameReader, pack_frame
from toolkit.worker_start import start_process
from toolkit.worker_values import TransferError, decode, encode
from toolkit.worker_watch import Watch, WorkerLimits

_TAIL_BYTES = 4096
_EXIT_S = 2.0  # a killed process is gone in milliseconds; longer only where the disk holds it


class _Reply:
    """What a call waits for."""

    def __init__(self, doing: str, deadline: float | None) -> None:
        self.doing, self.deadline = doing, deadline
        self.box: queue.SimpleQueue[Any] = queue.SimpleQueue()


@dataclass
class Stream:
    """A running answer: where its events go, and what came with its end."""

    sink: Callable[[Any], None]
    n_events: int = 0
    counts: Counts | None = None

    def __call__(self, event: Any) -> None:
        self.sink(event)


class Worker:
    """One process with one engine. Threads: all methods may be called from any thread; two daemon threads belong to it.

    Attributes:
        pid: Of the process.
        crash: What ended it, once it has ended by itself.
        rss_bytes: Its resident memory when it last told.
        peak_rss_bytes: Its highest resident memory when an answer last ended.
    """

    def __init__(self, what: str, *, limits: WorkerLimits | None = None, cpus: Sequence[int] = ()) -> None:
        """Start the process; `what` names its bundle in errors.

        Raises:
            EngineError: The system starts no process.
        """
        self._what, self._limits, self._cpus = what, limits or WorkerLimits(), tuple(cpus)
        self.pid, self._host_pid = 0, os.getpid()
        self.crash: EngineCrashed | None = None
        self.rss_bytes: int | None = None
        self.peak_rss_bytes: int | None = None
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._replies: dict[int, _Reply] = {}
        self._streams: dict[int, Stream] = {}
        self._n_messages = 0
        self._is_closing = False
        self._ended_as: tuple[CrashCause, str] | None = None  # set before we kill it, by the reason
        self._tail = b""
        self._oom = read_oom_counters()
        self._watch = Watch()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # The kernel ends the process with the thread that started it (PR_SET_PDEATHSIG), so that thread must live as long.
        self._keeper = threading.Thread(target=self._keep, args=[started], name="engine-keeper", daemon=True)
        self._keeper.start()
        if (error := started.get()) is not None:
            raise EngineError(
                f"no process for the engine of {what} can be started", why=str(error), fix="run it in this process: isolated=False"
            ) from error

    def call(self, target: int, method: str, *arguments: Any, doing: str = "", limit_s: float | None = None, **options: Any) -> Any:
        """Call a method of object number `target` in the process and wait for what it returns.

        Args:
            doing: What it is, for errors: "loading model.litertlm".
            limit_s: Kill the process when it takes longer.

        Raises:
            EngineCrashed: The process has ended, or ends before it answers.
            ToolkitError: What the method raised.
        """
        if os.getpid() != self._host_pid:  # a fork has this object, but none of its threads
            raise UsageError(
                f"the engine of {self._what} belongs to another process",
                why=f"process {self._host_pid} opened it and this one, {os.getpid()}, was forked from it",
                fix="open an engine in each process, or start processes with multiprocessing's spawn",
            )
        streams: list[Stream] = []
        reply = _Reply(doing or method, None if limit_s is None else time.monotonic() + limit_s)
        data = self._message(target, method, arguments, options, streams, reply)
        self._outgoing.put(data)
        self._wake()
        outcome = reply.box.get()
        if isinstance(outcome, ToolkitError):
            raise outcome
        return outcome

    def post(self, target: int, method: str) -> None:
        """Call a method and wait for nothing; returns at once, also when the process has ended."""
        if self.crash is None and os.getpid() == self._host_pid:
            self._outgoing.put(pack_frame({"object": target, "method": method, "arguments": [], "options": encode({})}))

    def stream_of(self, sink: Callable[[Any], None]) -> Stream:
        """A callable argument for `call`, whose events arrive on the keeper's thread."""
        return Stream(sink)

    def close(self) -> None:
        """End the process now. May be called twice; waits some milliseconds until its memory is free, never longer than two seconds."""
        if os.getpid() != self._host_pid:
            return
        with self._lock:
            self._is_closing = True
        self._kill()
        if threading.current_thread() is not self._keeper:
            self._keeper.join(_EXIT_S)

    @property
    def is_busy(self) -> bool:
        """Whether it owes a reply or an end."""
        return bool(self._replies or self._streams)

    def _message(
        self, target: int, method: str, arguments: Sequence[Any], options: dict[str, Any], streams: list[Stream], reply: _Reply
    ) -> bytes:
        def keep(stream: Any) -> int:
            streams.append(stream if isinstance(stream, Stream) else Stream(stream))
            return len(streams) - 1

        encoded = {"arguments": encode(list(arguments), on_callback=keep), "options": encode(options, on_callback=keep)}
        with self._lock:
            if self.crash is not None:
                raise self.crash
            if not self.is_busy:
                self._watch.reset(time.monotonic())
            self._n_messages += 1
            number = self._n_messages
            sinks = [(number << 8) + index for index in range(len(streams))]
            self._streams |= zip(sinks, streams, strict=True)
            self._replies[number] = reply
        return pack_frame({"call": number, "object": target, "method": method, "sinks": sinks, **encoded})

    def _wake(self) -> None:
        with self._lock, suppress(BlockingIOError, OSError):
            if self._wake_writer >= 0:
                os.write(self._wake_writer, b"\0")

    # ---- the keeper's thread: owns the process from its start to its end

    def _keep(self, started: queue.SimpleQueue[BaseException | None]) -> None:
        try:
            process, events = start_process(self._cpus)
        except (OSError, subprocess.SubprocessError) as error:
            os.close(self._wake_reader)
            os.close(self._wake_writer)
            started.put(error)
            return
        self.pid = process.pid
        started.put(None)
        threading.Thread(target=self._write, args=[process], name="engine-writer", daemon=True).start()
        assert process.stderr is not None
        try:
            self._read(events, process.stderr.fileno())
        finally:
            self._bury(process)
            process.stderr.close()
            with self._lock:
                for descriptor in (events, self._wake_reader, self._wake_writer):
                    os.close(descriptor)
                self._wake_reader = self._wake_writer = -1

    def _write(self, process: subprocess.Popen[bytes]) -> None:
        """Its own thread: a process that reads nothing must not hold up a caller, least of all one that cancels."""
        assert process.stdin is not None
        with suppress(OSError, ValueError):
            while (data := self._outgoing.get()) is not None:
                view = memoryview(data)
                while view:
                    view = view[process.stdin.write(view) :]
        with suppress(OSError, ValueError):
            process.stdin.close()

    def _read(self, events: int, errors: int) -> None:
        """Until the process closes its end of the pipe, or says what is no message."""
        reader, waiting = FrameReader(), [events, errors, self._wake_reader]
        while True:
            pause = self._watch.pause_s(self.is_busy)
            before = time.monotonic()
            ready, _, _ = select.select(waiting, [], [], pause)
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
            if errors in ready and not self._take_errors(errors):
                waiting.remove(errors)
            if events in ready:
                data = os.read(events, 1 << 16)
                if not data:
                    return
                try:
                    for message in reader.feed(data):
                        self._take(message)
                except (FrameError, TransferError, KeyError, TypeError) as error:
                    self._end_as(CrashCause.GARBAGE, f"it wrote what is no message: {error}")
                    return
            self._judge(before, pause)

    def _take_errors(self, errors: int) -> bool:
        data = os.read(errors, 1 << 16)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if data and _passes_logs():
            with suppress(OSError):
                os.write(2, data)
        return bool(data)

    def _take(self, message: dict[str, Any]) -> None:
        now = time.monotonic()
        if "beat" in message:
            self.rss_bytes = message["rss"] if isinstance(message["rss"], int) else None
            self._watch.beat(now, float(message["beat"]))
        elif "log" in message:
            logging.getLogger(str(message["log"])).log(int(message["level"]), "%s", message["text"])
        elif "event" in message:
            self._watch.result(now)
            self._take_event(message)
        else:
            self._watch.result(now)
            with self._lock:
                reply = self._replies.pop(message["reply"])
            reply.box.put(raised(message["error"], self._what) if "error" in message else decode(message["value"]))

    def _take_event(self, message: dict[str, Any]) -> None:
        event = decode(message["value"])
        stream = self._streams.get(message["event"])
        if stream is None:
            return
        stream.n_events += 1
        if isinstance(event, StreamEnd):
            counts = decode(message.get("counts"))
            stream.counts = counts if isinstance(counts, Counts) else None
            if isinstance(peak := message.get("peak_rss"), int):
                self.peak_rss_bytes = peak
            with self._lock:
                del self._streams[message["event"]]
        elif not isinstance(event, str):
            raise TransferError("an event is neither text nor an end")
        stream(event)

    def _judge(self, before: float, pause: float | None) -> None:
        """Kill what hangs or takes too much."""
        now = time.monotonic()
        if not self.is_busy or (pause is not None and now - before > pause + self._limits.silence_s / 2):
            self._watch.reset(now)  # idle; or this whole process was stopped, and time passed for nobody
            return
        late = next((reply for reply in list(self._replies.values()) if reply.deadline is not None and now > reply.deadline), None)
        if late is not None:
            self._end_as(CrashCause.START, f"{late.doing} took longer than {self._limits.start_s:g} s{self._threads()}")
        elif (why := self._watch.verdict(now, self._limits)) is not None:
            self._end_as(CrashCause.HANG, f"{why}{self._threads()}")
        elif (most := self._limits.max_resident_bytes) is not None and (self.rss_bytes or 0) > most:
            self._end_as(CrashCause.MEMORY, f"it took {format_bytes(self.rss_bytes or 0)}; the budget is {format_bytes(most)}")

    def _threads(self) -> str:
        states = thread_states(self.pid)
        return f" ({states})" if states else ""

    def _end_as(self, cause: CrashCause, why: str) -> None:
        self._ended_as = self._ended_as or (cause, why)
        self._kill()

    def _kill(self) -> None:
        if self.pid:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # it leads a session of its own: what it started goes too

    def _bury(self, process: subprocess.Popen[bytes]) -> None:
        """Take its exit code, and tell everybody who waits."""
        try:
            code = process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._kill()
            code = process.wait()
        self._kill()
        last_event = self._last_event()
        with self._lock:
            self.crash = self._crash(code, last_event)
            replies, self._replies = list(self._replies.values()), {}
            streams, self._streams = list(self._streams.values()), {}
            self.pid = 0
        self._outgoing.put(None)
        for reply in replies:
            reply.box.put(self.crash)
        for stream in streams:
            stream(StreamEnd(str(self.crash.why)))

    def _last_event(self) -> str:
        with self._lock:
            doing = [reply.doing for reply in self._replies.values()]
            doing += [f"answering, {stream.n_events} pieces so far" for stream in self._streams.values()]
        return "; ".join(doing) or "waiting for work"

    def _crash(self, code: int, last_event: str) -> EngineCrashed:
        if self._is_closing:
            cause, why = CrashCause.KILLED, "it was closed"
        else:
            cause, why = self._ended_as or explain_exit(code, self._oom, read_oom_counters())
        said = b" | ".join(line.strip() for line in self._tail.splitlines() if line.strip())[-300:].decode("utf-8", errors="replace")
        told = f"; it was {last_event}" + (f"; it printed: {said}" if said else "")
        return EngineCrashed(
            f"the engine of {self._what} crashed",
            why=why + told,
            fix=FIXES[cause],
            cause=cause,
            last_event=last_event,
        )


def _passes_logs() -> bool:
    """Whether the user asked for everything; else what native code prints is kept for the error only."""
    return logging.getLogger("toolkit").isEnabledFor(logging.DEBUG)
