"""The host's side of an engine's process: starts it, talks to it, watches it, and says what ended it."""

from __future__ import annotations

import logging
import os
import queue
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from toolkit.errors import EngineError, ToolkitError, UsageError
from toolkit.units import format_bytes
from toolkit.worker_calls import Calls, Reply, Stream, pack_call
from toolkit.worker_death import CrashCause, EngineCrashed, crashed, explain_exit, read_oom_counters, thread_states
from toolkit.worker_frames import FrameError, FrameReader, pack_frame
from toolkit.worker_hold import Hold
from toolkit.worker_start import start_process
from toolkit.worker_values import TransferError, encode
from toolkit.worker_watch import MemoryWatch, Watch, WorkerLimits

_TAIL_BYTES = 4096
_EXIT_S = 2.0  # a killed process is gone in milliseconds; longer only where the disk holds it
_LOADING_PAUSE_S = 0.25  # how often memory is looked at while a bundle loads: it can be used up between two signs of life
_MOST_SAID = 300


class Worker:
    """One process with one engine. Threads: all methods may be called from any thread; two daemon threads belong to it.

    Attributes:
        pid: Of the process.
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
        self.rss_bytes: int | None = None
        self.peak_rss_bytes: int | None = None
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._calls = Calls()
        self._is_closing = False
        self._ended_as: tuple[CrashCause, str] | None = None  # set before we kill it, by the reason
        self._tail = b""
        self._oom = read_oom_counters()
        self._watch, self._memory_watch = Watch(), MemoryWatch()
        self._hold = Hold(lambda: self.pid, lambda word: self.post(0, word))
        self._wake_reader = self._wake_writer = -1
        started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # The kernel ends the process with the thread that started it (PR_SET_PDEATHSIG), so that thread must live as long.
        self._keeper = threading.Thread(target=self._keep, args=[started], name="engine-keeper", daemon=True)
        self._keeper.start()
        if (error := started.get()) is not None:
            raise EngineError(
                f"no process for the engine of {what} can be started", why=str(error), fix="run it in this process: isolated=False"
            ) from error

    @property
    def crash(self) -> EngineCrashed | None:
        """What ended the process, once it has ended."""
        return self._calls.crash

    def call(self, target: int, method: str, *arguments: Any, doing: str = "", limit_s: float | None = None, **options: Any) -> Any:
        """Call a method of object number `target` in the process and wait for what it returns.

        Args:
            doing: What it is, for errors: "loading model.litertlm".
            limit_s: Kill the process when it takes longer.

        Raises:
            EngineCrashed: The process has ended, or ends before it answers.
            UsageError: An argument cannot be sent, or is too long; the process lives on.
            ToolkitError: What the method raised.
        """
        self._refuse_forks()
        number = self._calls.next_number()
        data, streams = pack_call(number, target, method, arguments, options, what=self._what)  # if refused, nothing is owed
        reply = Reply(doing or method, None if limit_s is None else self._hold.now() + limit_s)
        if self._calls.expect(number, reply, streams):
            self._watch.reset(self._hold.now())
        with self._hold.awake():
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

    def hold(self, is_held: bool) -> None:
        """Stop the process where it is, or let it go on; calls are answered all the same, and the time is no sign of a hang."""
        if os.getpid() == self._host_pid:  # a fork's copy of this object knows nothing of what its process does
            self._hold.set(is_held)

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
        return self._calls.is_busy

    def _refuse_forks(self) -> None:
        if os.getpid() != self._host_pid:  # it has this object, but none of its threads
            raise UsageError(
                f"the engine of {self._what} belongs to another process",
                why=f"process {self._host_pid} opened it and this one, {os.getpid()}, was forked from it",
                fix="open an engine in each process, or start processes with multiprocessing's spawn",
            )

    def _wake(self) -> None:
        with self._lock, suppress(BlockingIOError, OSError):
            if self._wake_writer >= 0:
                os.write(self._wake_writer, b"\0")

    # ---- the keeper's thread: owns the process from its start to its end

    def _keep(self, started: queue.SimpleQueue[BaseException | None]) -> None:
        pipe: list[int] = []
        try:
            pipe += os.pipe()
            process, events = start_process(self._cpus)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            for descriptor in pipe:
                os.close(descriptor)
            started.put(error)
            return
        assert process.stderr is not None
        self._wake_reader, self._wake_writer = pipe
        os.set_blocking(self._wake_writer, False)
        self.pid = process.pid
        started.put(None)
        try:
            threading.Thread(target=self._write, args=[process], name="engine-writer", daemon=True).start()
            self._read(events, process.stderr.fileno())
        finally:
            self._bury(process)
            process.stderr.close()
            with self._lock:
                for descriptor in (events, *pipe):
                    os.close(descriptor)
                self._wake_reader = self._wake_writer = -1
            process.wait()  # at once, but for a process whose disk does not answer: nobody but this thread waits for that

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
        reader, poller = FrameReader(), select.poll()  # `select.select` refuses descriptors of 1024 and more
        for descriptor in (events, errors, self._wake_reader):
            poller.register(descriptor, select.POLLIN)
        while True:
            pause = self._pause_s()
            before = self._hold.now()
            ready = {descriptor for descriptor, _ in poller.poll(None if pause is None else 1000 * pause)}
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
            if errors in ready and not self._take_errors(errors):
                poller.unregister(errors)
            if events in ready:
                data = os.read(events, 1 << 16)
                if not data:
                    return
                try:
                    for message in reader.feed(data):
                        self._take(message)
                except Exception as error:  # whatever a damaged message trips over: this thread is who tells those that wait
                    said = str(error) if isinstance(error, FrameError | TransferError) else f"{type(error).__name__}: {error}"
                    self._end_as(CrashCause.GARBAGE, f"it wrote what is no message: {said[:_MOST_SAID]}")
                    return
            self._judge(before, pause)

    def _pause_s(self) -> float | None:
        pause = self._watch.pause_s(self.is_busy)
        return _LOADING_PAUSE_S if pause is not None and self._calls.has_deadline else pause

    def _take_errors(self, errors: int) -> bool:
        data = os.read(errors, 1 << 16)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if data and _passes_logs():
            with suppress(OSError):
                os.write(2, data)
        return bool(data)

    def _take(self, message: dict[str, Any]) -> None:
        now = self._hold.now()
        if "beat" in message:
            self._watch.beat(now, float(message["beat"]))
            self.rss_bytes = message["rss"] if isinstance(message["rss"], int) else None
        elif "log" in message:
            name, level, text = str(message["log"]), int(message["level"]), str(message["text"])
            with suppress(Exception):  # a handler of the app's that fails is not the engine's fault
                logging.getLogger(name).log(level, "%s", text)
        elif "event" in message:
            self._watch.result(now)
            if isinstance(peak := message.get("peak_rss"), int):
                self.peak_rss_bytes = peak
            self._calls.take_event(message)
        else:
            self._watch.result(now)
            self._calls.take_reply(message, self._what)

    def _judge(self, before: float, pause: float | None) -> None:
        """Kill what hangs or takes too much."""
        now = self._hold.now()
        if not self.is_busy or (pause is not None and now - before > pause + self._limits.silence_s / 2):
            self._watch.reset(now)  # idle; or this whole process was stopped, and time passed for nobody
            return
        self._memory_watch.look(now)
        if (late := self._calls.late(now)) is not None:
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
        """Take its exit code, if it can be had, and tell everybody who waits."""
        code = _exit_code(process)
        self._kill()
        if code is None:
            self._ended_as = self._ended_as or (CrashCause.HANG, "it closed its end of the pipe and did not end")
            code = _exit_code(process)
        with self._lock:
            crash, self.pid = self._crash(code, self._calls.doing()), 0
        self._outgoing.put(None)
        self._calls.end(crash)

    def _crash(self, code: int | None, last_event: str) -> EngineCrashed:
        if self._is_closing:
            cause, why = CrashCause.KILLED, "it was closed"
        elif self._ended_as is not None or code is None:
            cause, why = self._ended_as or (CrashCause.HANG, "it does not end")
        else:
            shortage = self._memory_watch.shortage(self._hold.now())
            cause, why = explain_exit(code, self._oom, read_oom_counters(), shortage=shortage)
        return crashed(self._what, cause, why, last_event=last_event, printed=self._tail)


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """How it ended; None for one that stays although it should have gone."""
    try:
        return process.wait(_EXIT_S)
    except subprocess.TimeoutExpired:
        return None


def _passes_logs() -> bool:
    """Whether the user asked for everything; else what native code prints is kept for the error only."""
    return logging.getLogger("toolkit").isEnabledFor(logging.DEBUG)
