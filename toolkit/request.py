"""What one `send` asks for, checked before an engine is touched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from toolkit.answer import Answer, FinishReason
from toolkit.errors import UsageError
from toolkit.limits import check_max_tokens, check_stops, check_text
from toolkit.schema import Schema, read_schema


@dataclass(frozen=True)
class Request:
    """See `Session.send`."""

    text: str
    max_tokens: int
    stops: tuple[str, ...]
    schema: Schema | None

    @property
    def options(self) -> dict[str, Any]:
        """What the engine's session is started with beside the text: nothing, unless it is asked for."""
        return {} if self.schema is None else {"schema": self.schema.text}

    def parsed(self, answer: Answer) -> Any:
        """The value of an answer that came to its end by itself; None for a cut one, or without a schema.

        Raises:
            EngineError: It is not what the schema asks for.
        """
        if self.schema is None or answer.reason is not FinishReason.STOP:
            return None
        return self.schema.parsed(answer.text)


def checked_request(text: str, max_tokens: int, stop: str | Iterable[str], schema: Any, *, context_length: int) -> Request:
    """A request.

    Raises:
        UsageError: A limit is out of range, the text is none, the schema is none, or there are both a schema and stop strings.
    """
    check_max_tokens(max_tokens)
    check_text(text, what="the prompt", context_length=context_length)
    stops = check_stops(stop)
    if schema is not None and stops:
        raise UsageError(
            "an answer cannot have both a schema and stop strings",
            why=f"{stops[0]!r} would cut it before its value is whole",
            fix="leave --stop out: the answer ends where its value does",
        )
    return Request(text, max_tokens, stops, None if schema is None else read_schema(schema))
