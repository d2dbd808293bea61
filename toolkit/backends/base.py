"""The contract between the runtime and each engine. Nothing here knows an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from toolkit.bundle import Bundle


@dataclass(frozen=True)
class Message:
    """One turn of a conversation. `role` is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Temperature 0 takes the likeliest; otherwise top-k, then top-p, then temperature.

    `seed` is fixed here, so that a result can be repeated: callers who want chance draw one.
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    seed: int = 0


@dataclass(frozen=True)
class StreamEnd:
    """The last event of a stream: the engine's own error, or None when it ended by itself."""

    error: str | None = None


StreamEvent = str | StreamEnd
Sink = Callable[[StreamEvent], None]


@dataclass(frozen=True)
class Counts:
    """What the engine says about the stream that just ended; None where it does not tell."""

    n_prompt_tokens: int
    n_generated_tokens: int
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None


@dataclass(frozen=True)
class Capabilities:
    """What a backend's sessions can do here beside answering. True means that the method is there and works.

    Args:
        streaming: Text is passed on while it is generated.
        cancel: A running answer ends within a token, a prefill within a chunk.
        keeps_cache: A second `start` goes on from what the cache holds; else everything is prefilled again.
        clone: `session.clone()`: another session with the same content.
        checkpoint: `session.checkpoint()` returns a mark, `session.rewind(mark)` takes out what came after it.
        logits: `session.log_probabilities(token_ids)`: of each as the next token.
        constraints: An answer can be held to a JSON schema.
    """

    streaming: bool = True
    cancel: bool = True
    keeps_cache: bool = True
    clone: bool = False
    checkpoint: bool = False
    logits: bool = False
    constraints: bool = False


@dataclass(frozen=True)
class BackendFacts:
    """What an engine's library says of itself on this machine.

    Args:
        version: Of the library or program.
        uses: Processors it computes on: "CPU", "GPU", "NPU".
        detail: What else there is to know, in a line.
        capabilities: Of its sessions.
    """

    version: str
    uses: tuple[str, ...]
    detail: str
    capabilities: Capabilities


class NativeSession(Protocol):
    """One KV cache and the text in it. Used by one caller at a time, except `cancel` and `close`."""

    def start(self, text: str, *, sink: Sink, schema: str | None = None) -> None:
        """Put `text` after what the cache holds, begin to generate what follows, and return at once.

        Pieces of text, then one `StreamEnd`, are passed to `sink` on a thread of the engine's. `sink` must be quick. A stop
        token ends the stream, stays in the cache and is not passed on. `schema` is a JSON schema as text: what is generated is
        a value of it, or the beginning of one where it is cut.

        Raises:
            EngineError: The engine refused the text.
            UsageError: No answer can be held to the schema.
            BackendUnavailableError: This engine holds answers to none.
        """

    def cancel(self) -> None:
        """Ask a running stream to end; returns at once, from any thread, even after `close`.

        The stream may go on for a whole prefill. Afterwards the session may only be closed.
        """

    def counts(self) -> Counts:
        """Figures of the stream that ended last. Must not be called before its `StreamEnd`."""

    def close(self) -> None:
        """Free the KV cache; may be called twice. Never blocks: what still runs is freed in the background when it ends."""


class NativeEngine(Protocol):
    """One set of weights in memory."""

    @property
    def n_start_tokens(self) -> int:
        """Tokens the engine puts before the first text of a session."""

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`, nothing added, control tokens recognized."""

    def render(self, messages: Sequence[Message]) -> str:
        """A conversation through the bundle's chat template, up to where the assistant's answer begins.

        Raises:
            EngineError: The template refused it.
        """

    def session(self, sampling: Sampling, *, max_tokens: int) -> NativeSession:
        """An empty KV cache, each of whose streams generates up to `max_tokens`."""

    def close(self) -> None:
        """Free the weights. Waits for streams that were cancelled to end."""


class Backend(Protocol):
    """One engine library."""

    @property
    def name(self) -> str:
        """The word of `--backend` and of the metrics."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Targets whose bundles it opens."""

    def open_engine(self, bundle: Bundle, *, context_length: int, threads: int) -> NativeEngine:
        """Load a checked bundle with a KV cache of `context_length` tokens.

        Raises:
            BackendUnavailableError: The engine's library is not installed or does not load here.
            FormatError: The engine refused the files, which are those that were sealed; the text carries its own message.
            EngineError: Memory is short, or it failed otherwise.
        """


class InstalledBackend(Backend, Protocol):
    """A backend as a module of this package exposes it, as `BACKEND`: it can also be asked what it is."""

    def probe(self) -> BackendFacts:
        """Load the engine's library, without a model, and ask it. It may end the process: `toolkit doctor` asks in another one.

        Raises:
            BackendUnavailableError: The library is not installed or does not load here.
        """
