"""Engines and sessions that live in another process, behind the same contract as those of this one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.backends.base import Backend, Counts, Message, NativeEngine, Sampling, Sink
from toolkit.bundle import Bundle
from toolkit.errors import EngineError
from toolkit.worker import Worker
from toolkit.worker_calls import Stream
from toolkit.worker_values import Handle
from toolkit.worker_watch import WorkerLimits


class RemoteObject:
    """Something in a worker, by its number. What this class does not define is passed on as it is, if it is there."""

    def __init__(self, worker: Worker, handle: Handle) -> None:
        self._worker, self._handle = worker, handle

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._handle.values:
            return self._handle.values[name]
        if name not in self._handle.methods:
            raise AttributeError(f"the engine has no {name!r}")

        def call(*arguments: Any, **options: Any) -> Any:
            return self._wrapped(self._worker.call(self._handle.number, name, *arguments, **options))

        return call

    def _wrapped(self, value: Any) -> Any:
        """Objects that a method returns are sessions: clones, checkpoints."""
        return RemoteSession(self._worker, value) if isinstance(value, Handle) else value

    def close(self) -> None:
        """Free it over there; returns at once."""
        self._worker.post(self._handle.number, "close")


class RemoteSession(RemoteObject):
    """See `toolkit.backends.base.NativeSession`."""

    _stream: Stream | None = None

    def start(self, text: str, *, sink: Sink, **options: Any) -> None:
        self._stream = stream = self._worker.stream_of(sink)
        self._worker.call(self._handle.number, "start", text, sink=stream, doing="prefilling", **options)

    def cancel(self) -> None:
        self._worker.post(self._handle.number, "cancel")

    def counts(self) -> Counts:
        stream = self._stream
        if stream is None or stream.counts is None:
            return Counts(0, 0 if stream is None else max(0, stream.n_events - 1), None, None)
        return stream.counts


class RemoteEngine(RemoteObject):
    """See `toolkit.backends.base.NativeEngine`."""

    @property
    def n_start_tokens(self) -> int:
        return int(self._handle.values["n_start_tokens"])

    @property
    def worker(self) -> Worker:
        """The process it lives in."""
        return self._worker

    def tokenize(self, text: str) -> list[int]:
        ids = self._worker.call(self._handle.number, "tokenize", text)
        if not isinstance(ids, list) or not all(isinstance(token_id, int) for token_id in ids):
            raise _nonsense("token ids")
        return ids

    def render(self, messages: Sequence[Message]) -> str:
        rendered = self._worker.call(self._handle.number, "render", list(messages), doing="rendering the chat template")
        if not isinstance(rendered, str):
            raise _nonsense("a rendered conversation")
        return rendered

    def session(self, sampling: Sampling, *, max_tokens: int, **options: Any) -> RemoteSession:
        handle = self._worker.call(self._handle.number, "session", sampling, max_tokens=max_tokens, doing="opening a session", **options)
        if not isinstance(handle, Handle):
            raise _nonsense("a session")
        return RemoteSession(self._worker, handle)

    def close(self) -> None:
        """End its process, which frees everything at once whatever runs there."""
        self._worker.close()


class IsolatedBackend:
    """A backend whose engines each get a process of their own."""

    def __init__(self, backend: Backend, *, limits: WorkerLimits, cpus: Sequence[int]) -> None:
        self._backend, self._limits, self._cpus = backend, limits, cpus
        self.name, self.targets = backend.name, backend.targets

    def open_engine(self, bundle: Bundle, *, context_length: int, threads: int, **options: Any) -> NativeEngine:
        """As the backend's own.

        Raises:
            EngineCrashed: Loading ended the process, or took longer than `WorkerLimits.start_s`.
        """
        worker = Worker(bundle.name, limits=self._limits, cpus=self._cpus)
        doing = f"loading {bundle.entry_path.name} with a context of {context_length} tokens"
        arguments = (self.name, str(bundle.path.resolve()), context_length, threads, options)
        try:
            handle = worker.call(0, "open_engine", *arguments, doing=doing, limit_s=self._limits.start_s)
        except BaseException:
            worker.close()
            raise
        if not isinstance(handle, Handle) or not isinstance(handle.values.get("n_start_tokens"), int):
            worker.close()
            raise _nonsense("an engine")
        return RemoteEngine(worker, handle)


def _nonsense(wanted: str) -> EngineError:
    """A message that is one, but of the wrong kind: the memory of that process is damaged, or its engine breaks the contract."""
    return EngineError(f"the engine's process did not return {wanted}", why="what it sent is something else", fix="toolkit verify BUNDLE")
