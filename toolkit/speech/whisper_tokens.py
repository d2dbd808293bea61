"""The tokens that steer Whisper: what a transcript starts and ends with, languages, timestamps, what is never said.

They stand in a bundle's manifest (`spec.tokens`), so that decoding needs no tokenizer library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from toolkit.errors import FormatError, UsageError

Task = Literal["transcribe", "translate"]
TIMESTAMP_STEP_S = 0.02
WINDOW_S = 30.0
N_TIMESTAMPS = 1501  # 0.00 s to 30.00 s, both written
MAX_VOCAB = 2**20
MAX_LANGUAGES = 1000


@dataclass(frozen=True)
class WhisperTokens:
    """Token ids of one Whisper vocabulary.

    Args:
        end_of_text: Ends a transcript; every id below it is text.
        start_of_transcript: First token of the decoder's prompt.
        transcribe, translate: The task, second or third token of a multilingual model's prompt.
        start_of_previous: Stands before text that came earlier, ahead of the prompt.
        no_speech: Its probability after `start_of_transcript` tells silence.
        no_timestamps: Last token of a prompt whose answer has no timestamps.
        timestamp_begin: 0.00 s; the ids after it count up in steps of 0.02 s.
        is_multilingual: Whether the prompt names a language and a task.
        languages: Language code -> id; empty for an English-only model.
        suppressed: Never chosen.
        suppressed_at_start: Not chosen as the first token of an answer (a blank, the end).
    """

    end_of_text: int
    start_of_transcript: int
    transcribe: int
    translate: int
    start_of_previous: int
    no_speech: int
    no_timestamps: int
    timestamp_begin: int
    is_multilingual: bool
    languages: dict[str, int]
    suppressed: tuple[int, ...] = ()
    suppressed_at_start: tuple[int, ...] = ()

    def prompt(self, *, language: str | None = None, task: Task = "transcribe", timestamps: bool = True) -> tuple[int, ...]:
        """The tokens a transcript starts from.

        Args:
            language: Code of `languages`; not looked at for an English-only model unless it is another language.
            task: Write what is said, or its English translation.
            timestamps: Whether the answer may hold timestamps.

        Raises:
            UsageError: The model does not know the language, or cannot translate.
        """
        tail = () if timestamps else (self.no_timestamps,)
        if not self.is_multilingual:
            if language not in (None, "en") or task != "transcribe":
                raise UsageError(
                    "this Whisper model is for English only",
                    why=f"asked for language {language}, task {task}",
                    fix="use a multilingual model, such as whisper-base, or leave out the language",
                )
            return (self.start_of_transcript, *tail)
        return (self.start_of_transcript, self.language_token(language), self.transcribe if task == "transcribe" else self.translate, *tail)

    def language_token(self, language: str | None) -> int:
        """The id of a language code. Raises UsageError if there is none."""
        if language is None or language not in self.languages:
            raise UsageError(
                f"the language {language!r} is not one of this model's",
                why=f"it knows {len(self.languages)}: {', '.join(list(self.languages)[:12])}, ...",
                fix="give one of its two-letter codes, such as en or ja, or leave it out to have it detected",
            )
        return self.languages[language]

    def seconds(self, token_id: int) -> float:
        """The time a timestamp token stands for, in seconds from the start of the window."""
        return (token_id - self.timestamp_begin) * TIMESTAMP_STEP_S

    def as_dict(self) -> dict[str, Any]:
        """JSON data; `from_dict` reads it back."""
        return asdict(self) | {"suppressed": list(self.suppressed), "suppressed_at_start": list(self.suppressed_at_start)}

    @classmethod
    def from_dict(cls, data: Any, *, vocab_size: int, origin: str = "the manifest") -> WhisperTokens:
        """Check and read what `as_dict` wrote.

        Raises:
            FormatError: A field is missing, unknown, or no token id of a vocabulary of `vocab_size`.
        """
        if not 0 < vocab_size <= MAX_VOCAB:
            raise _damaged(origin, f"a vocabulary of {vocab_size} tokens; 1 to {MAX_VOCAB} are allowed")
        names = [field.name for field in fields(cls)]
        if not isinstance(data, Mapping) or sorted(data) != sorted(names):
            raise _damaged(origin, f"it must hold exactly {', '.join(names)}")
        if not isinstance(data["is_multilingual"], bool):
            raise _damaged(origin, "is_multilingual must be true or false")
        languages = data["languages"]
        if not isinstance(languages, Mapping) or len(languages) > MAX_LANGUAGES or not all(isinstance(code, str) for code in languages):
            raise _damaged(origin, "languages must map codes to token ids")
        if data["is_multilingual"] and not languages:
            raise _damaged(origin, "a multilingual model without languages")
        values: dict[str, Any] = {
            name: _id(name, data[name], vocab_size, origin)
            for name in names
            if name not in ("is_multilingual", "languages", "suppressed", "suppressed_at_start")
        }
        for name in ("suppressed", "suppressed_at_start"):
            if not isinstance(data[name], list | tuple) or len(data[name]) > vocab_size:
                raise _damaged(origin, f"{name} must be a list of token ids")
            values[name] = tuple(_id(name, item, vocab_size, origin) for item in data[name])
        tokens = cls(
            is_multilingual=data["is_multilingual"],
            languages={code: _id(f"languages.{code}", item, vocab_size, origin) for code, item in languages.items()},
            **values,
        )
        tokens._check_order(vocab_size, origin)
        return tokens

    def _check_order(self, vocab_size: int, origin: str) -> None:
        special = (self.start_of_transcript, self.transcribe, self.translate, self.start_of_previous, self.no_speech, self.no_timestamps)
        if not all(self.end_of_text < token_id < self.timestamp_begin for token_id in (*special, *self.languages.values())):
            raise _damaged(origin, f"special tokens must lie between {self.end_of_text} (end of text) and {self.timestamp_begin} (0.00 s)")
        if self.timestamp_begin + N_TIMESTAMPS > vocab_size:
            raise _damaged(origin, f"{N_TIMESTAMPS} timestamps from {self.timestamp_begin} do not fit a vocabulary of {vocab_size}")


def _id(name: str, value: Any, vocab_size: int, origin: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
        raise _damaged(origin, f"{name[:60]} must be a token id below {vocab_size}, not {str(value)[:20]}")
    return value


def _damaged(origin: str, why: str) -> FormatError:
    return FormatError(
        f"{origin} does not describe Whisper's tokens", why=why, fix="convert the checkpoint again, or copy the bundle again"
    )
