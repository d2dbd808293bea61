"""A backend without weights: one token a character, an answer that a test writes, and a record of what was asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toolkit.backends.base import Counts, Message, Sampling, Sink, StreamEnd
from toolkit.bundle import Bundle

END = "\u2402"  # the text of the stop token
END_ID = ord(END)


def chat_template(messages: Sequence[Message]) -> str:
    return "".join(f"<{message.role}>{message.content}{END}\n" for message in messages) + "<assistant>"


@dataclass
class FakeSession:
    """Answers from the engine's script; a text that ends with END stops by itself, any other is cut."""

    engine: FakeEngine
    max_tokens: int
    n_prompt_tokens: int = 0
    n_generated_tokens: int = 0
    n_closed: int = 0
    n_cancelled: int = 0

    def start(self, text: str, *, sink: Sink, schema: str | None = None) -> None:
        assert not self.n_closed, "a session must not be started after it was closed"
        self.engine.on_start()
        self.engine.started.append((id(self), text))
        answer = self.engine.answers.pop(0)
        self.n_prompt_tokens, self.n_generated_tokens = len(text), len(answer)
        for piece in answer.removesuffix(END):
            sink(piece)
        sink(StreamEnd(self.engine.error))

    def cancel(self) -> None:
        self.n_cancelled += 1

    def counts(self) -> Counts:
        return Counts(self.n_prompt_tokens, self.n_generated_tokens, None, None)

    def close(self) -> None:
        self.n_closed += 1


@dataclass
class FakeEngine:
    """`answers` are given in turn; `started` records (session, text prefilled)."""

    answers: list[str] = field(default_factory=list)
    started: list[tuple[int, str]] = field(default_factory=list)
    sessions: list[FakeSession] = field(default_factory=list)
    error: str | None = None
    n_start_tokens: int = 0
    template: Callable[[Sequence[Message]], str] = chat_template
    on_start: Callable[[], None] = lambda: None
    tokens_of: Callable[[str], list[int]] = lambda text: [ord(char) for char in text]

    def tokenize(self, text: str) -> list[int]:
        return self.tokens_of(text)

    def render(self, messages: Sequence[Message]) -> str:
        return self.template(messages)

    def session(self, sampling: Sampling, *, max_tokens: int) -> FakeSession:
        self.sessions.append(FakeSession(self, max_tokens))
        return self.sessions[-1]

    def close(self) -> None:
        assert all(session.n_closed for session in self.sessions), "an engine must not be closed under its sessions"


@dataclass
class FakeBackend:
    """Hands out one engine; `opened` records the context lengths it was opened with, `failures` are raised before."""

    engine: FakeEngine = field(default_factory=FakeEngine)
    opened: list[int] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    name: str = "fake"
    targets: tuple[str, ...] = ("litert",)

    def open_engine(self, bundle: Bundle, *, context_length: int, threads: int) -> FakeEngine:
        if self.failures:
            raise self.failures.pop(0)
        self.opened.append(context_length)
        return self.engine
