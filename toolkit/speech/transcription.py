"""A whole recording, window after window: where a window's last finished sentence ends, the next window begins.

The order of work is OpenAI's (whisper/transcribe.py) without fallback temperatures and without text of earlier windows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from toolkit.speech.resample import Samples
from toolkit.speech.wav import SAMPLE_RATE
from toolkit.speech.whisper_decoding import DecodeOptions, Stepper, WindowResult, decode_window
from toolkit.speech.whisper_tokens import TIMESTAMP_STEP_S, WhisperTokens

# A window in which the model expects no speech and is unsure of what it wrote says nothing.
NO_SPEECH_PROBABILITY, SURE_LOG_PROBABILITY = 0.6, -1.0


class WindowModel(Stepper, Protocol):
    """A Whisper that takes a window of sound; `WhisperLiteRt` is one."""

    @property
    def tokens(self) -> WhisperTokens:
        """Its special tokens."""

    @property
    def n_samples(self) -> int:
        """Samples of one window, at 16 kHz."""

    def encode(self, samples: Samples) -> None:
        """Take the sound that the next steps are about."""


class Vocabulary(Protocol):
    """Tokens to text; `WhisperVocabulary` is one."""

    def text(self, token_ids: tuple[int, ...]) -> str:
        """The text of tokens."""


@dataclass(frozen=True)
class Segment:
    """A stretch of text with its times in seconds from the start of the recording, and how sure the model was of its window."""

    start_s: float
    end_s: float
    text: str
    token_ids: tuple[int, ...]
    no_speech_probability: float
    mean_log_probability: float


@dataclass(frozen=True)
class Transcript:
    """What was said. `language` is None for an English-only model."""

    text: str
    segments: tuple[Segment, ...]
    language: str | None
    duration_s: float


def transcribe(
    model: WindowModel,
    vocabulary: Vocabulary,
    samples: Samples,
    options: DecodeOptions | None = None,
    *,
    on_segment: Callable[[Segment], None] | None = None,
) -> Transcript:
    """Transcribe a recording.

    Args:
        model: Takes windows and decodes them.
        vocabulary: Turns its tokens into text.
        samples: One channel at 16 kHz.
        options: How; without a language it is detected in the first window and kept.
        on_segment: Gets each segment as soon as it is there.

    Raises:
        UsageError: The language or task is not the model's.
        EngineError: The runtime fails.
    """
    options = options or DecodeOptions()
    segments: list[Segment] = []
    at = 0
    while at < len(samples):
        window = samples[at : at + model.n_samples]
        model.encode(window)
        result = decode_window(model, model.tokens, options)
        if options.language is None and result.language is not None:
            options = replace(options, language=result.language)
        n_taken = len(window)
        if not _is_silent(result):
            found, n_taken = split_window(result, model.tokens, n_samples=len(window))
            for start, end, token_ids in found:
                text = vocabulary.text(token_ids)
                if not text.strip():
                    continue
                base = at / SAMPLE_RATE
                sure = (result.no_speech_probability, result.mean_log_probability)
                segments.append(Segment(base + start, base + end, text, token_ids, *sure))
                if on_segment is not None:
                    on_segment(segments[-1])
        at += max(n_taken, SAMPLE_RATE // 10)  # a model that finds no end must not stay where it is
    text = "".join(segment.text for segment in segments).strip()
    return Transcript(text, tuple(segments), options.language if model.tokens.is_multilingual else None, len(samples) / SAMPLE_RATE)


def _is_silent(result: WindowResult) -> bool:
    return result.no_speech_probability > NO_SPEECH_PROBABILITY and result.mean_log_probability < SURE_LOG_PROBABILITY


def split_window(result: WindowResult, tokens: WhisperTokens, *, n_samples: int) -> tuple[list[tuple[float, float, tuple[int, ...]]], int]:
    """A window's answer as (start_s, end_s, text tokens), times from the window's start, and the samples that are done with.

    Two timestamps in a row end one segment and begin the next. An answer that stops after such a pair was cut by the
    window's end, so the next window begins at the pair; one that ends in a single timestamp, or in text, is finished.
    """
    ids, begin = result.token_ids, tokens.timestamp_begin
    duration_s = n_samples / SAMPLE_RATE
    is_time = [token_id >= begin for token_id in ids]
    cuts = [index for index in range(1, len(ids)) if is_time[index - 1] and is_time[index]]
    if not cuts:
        text_ids = tuple(token_id for token_id in ids if token_id < begin)
        last = next((tokens.seconds(token_id) for token_id in reversed(ids) if token_id > begin), duration_s)
        return ([(0.0, min(last, duration_s), text_ids)] if text_ids else []), n_samples
    ends_in_one = is_time[-1] and not is_time[-2]
    bounds = [*cuts, len(ids)] if ends_in_one else cuts
    found, start = [], 0
    for bound in bounds:
        part = ids[start:bound]
        times = [tokens.seconds(token_id) for token_id in part if token_id >= begin]
        text_ids = tuple(token_id for token_id in part if token_id < begin)
        if times and text_ids:
            found.append((min(times[0], duration_s), min(times[-1], duration_s), text_ids))
        start = bound
    if ends_in_one:
        return found, n_samples
    done_s = tokens.seconds(ids[bounds[-1] - 1])
    return found, min(n_samples, round(done_s / TIMESTAMP_STEP_S) * round(TIMESTAMP_STEP_S * SAMPLE_RATE))
