"""What the host of an engine's process waits for: replies to its calls, and the events of the streams they began."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.backends.base import Counts, StreamEnd
from toolkit.errors import ToolkitError, UsageError
from toolkit.units import format_bytes
from toolkit.worker_death import EngineCrashed, raised
from toolkit.worker_frames import MAX_FRAME_BYTES, FrameError, pack_frame
from toolkit.worker_values import TransferError, decode, encode

_SINK_BITS = 8  # a sink's number is its call's, with as many bits for its place among the call's


class Reply:
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


class Calls:
    """Everything one process owes. All methods may be called from any thread.

    Attributes:
        crash: What ended the process; afterwards it owes nothing, and nothing can be asked of it.
    """

    def __init__(self) -> None:
        self.crash: EngineCrashed | None = None
        self._lock = threading.Lock()
        self._replies: dict[int, Reply] = {}
        self._streams: dict[int, Stream] = {}
        self._n_calls = 0

    @property
    def is_busy(self) -> bool:
        """Whether the process owes a reply or an end."""
        return bool(self._replies or self._streams)

    @property
    def has_deadline(self) -> bool:
        """Whether something is awaited that may take only so long: a bundle is being loaded."""
        return any(reply.deadline is not None for reply in self._waiting())

    def next_number(self) -> int:
        """A number for a call; nothing is owed for it yet."""
        with self._lock:
            self._n_calls += 1
            return self._n_calls

    def expect(self, number: int, reply: Reply, streams: Sequence[Stream]) -> bool:
        """From now on the process owes this reply and the ends of these streams; returns whether it was idle before.

        Raises:
            EngineCrashed: It has ended.
        """
        with self._lock:
            if self.crash is not None:
                raise self.crash
            was_idle = not self.is_busy
            self._streams |= zip(_sink_numbers(number, streams), streams, strict=True)
            self._replies[number] = reply
        return was_idle

    def take_reply(self, message: dict[str, Any], what: str) -> None:
        """Hand a reply to its caller. What is no value raises before the caller is forgotten, so that the crash reaches it.

        Raises:
            TransferError, LookupError, TypeError: It is damaged.
        """
        number = message["reply"]
        outcome = raised(message["error"], what) if "error" in message else decode(message["value"])
        with self._lock:
            reply = self._replies.pop(number)
            if isinstance(outcome, ToolkitError):  # a stream that was refused never ends
                self._streams = {sink: stream for sink, stream in self._streams.items() if sink >> _SINK_BITS != number}
        reply.box.put(outcome)

    def take_event(self, message: dict[str, Any]) -> None:
        """Hand an event to its stream; one of a stream that is not known any more is dropped.

        Raises:
            TransferError, LookupError, TypeError: It is damaged.
        """
        event, number = decode(message["value"]), message["event"]
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.n_events += 1
        if isinstance(event, StreamEnd):
            counts = decode(message.get("counts"))
            stream.counts = counts if isinstance(counts, Counts) else None
            with self._lock:
                self._streams.pop(number, None)
        elif not isinstance(event, str):
            raise TransferError("an event is neither text nor an end")
        stream(event)

    def late(self, now: float) -> Reply | None:
        """A reply whose time is over."""
        return next((reply for reply in self._waiting() if reply.deadline is not None and now > reply.deadline), None)

    def doing(self) -> str:
        """What the process is at, for errors."""
        with self._lock:
            doing = [reply.doing for reply in self._replies.values()]
            doing += [f"answering, {stream.n_events} pieces so far" for stream in self._streams.values()]
        return "; ".join(doing) or "waiting for work"

    def end(self, crash: EngineCrashed) -> None:
        """The process has ended: tell everybody who waits."""
        with self._lock:
            self.crash = crash
            replies, self._replies = list(self._replies.values()), {}
            streams, self._streams = list(self._streams.values()), {}
        for reply in replies:
            reply.box.put(crash)
        for stream in streams:
            stream(StreamEnd(str(crash.why)))

    def _waiting(self) -> list[Reply]:
        with self._lock:
            return list(self._replies.values())


def pack_call(
    number: int, target: int, method: str, arguments: Sequence[Any], options: dict[str, Any], *, what: str
) -> tuple[bytes, list[Stream]]:
    """A call as a message, and the streams among its arguments; a callable becomes one.

    Raises:
        UsageError: An argument cannot be sent, or is too long.
    """
    streams: list[Stream] = []

    def keep(stream: Any) -> int:
        streams.append(stream if isinstance(stream, Stream) else Stream(stream))
        return len(streams) - 1

    try:
        encoded = {"arguments": encode(list(arguments), on_callback=keep), "options": encode(options, on_callback=keep)}
        sinks = _sink_numbers(number, streams)
        return pack_frame({"call": number, "object": target, "method": method, "sinks": sinks, **encoded}), streams
    except TransferError as error:
        raise UsageError(
            f"what {method!r} was given cannot be sent to the engine of {what}",
            why=str(error),
            fix="pass text, numbers, lists and dictionaries, or open the engine with isolated=False",
        ) from error
    except FrameError as error:
        raise UsageError(
            f"what {method!r} was given is too long for the engine of {what}",
            why=f"{error}; a message to its process has at most {format_bytes(MAX_FRAME_BYTES)}",
            fix="send it in parts, or open the engine with isolated=False",
        ) from error


def _sink_numbers(number: int, streams: Sequence[Stream]) -> list[int]:
    """The numbers under which the events of a call's streams come."""
    return [(number << _SINK_BITS) + index for index in range(len(streams))]
