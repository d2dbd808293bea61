"""Fidelity of a speech model: its logits on what is said, its greedy text, and its word error rate, beside the checkpoint's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from converters.child import run_in_child
from converters.divergence import Divergence, Logits
from converters.measure import measure_in_child
from converters.panics import panics_explained
from converters.speech_reference import SpeechReference, SpeechWindow, open_speech_reference
from converters.wer import ErrorCount, word_errors
from toolkit.manifest import Fidelity
from toolkit.speech.whisper_text import WhisperVocabulary

if TYPE_CHECKING:
    from converters.speech_checkpoint import SpeechCheckpoint
    from converters.targets.base import Target
    from converters.whisper_spec import WhisperSpec

TOKENIZER_NAME = "tokenizer.json"


class SpeechScorer(Protocol):
    """A native speech model, opened to be compared with its checkpoint."""

    def hear(self, samples: Sequence[float]) -> None:
        """Take one window of sound."""

    def logits(self, token_ids: Sequence[int], n_prompt: int) -> Iterator[Logits]:
        """Logits after each token from number `n_prompt` on, from an empty cache: blocks of (n, vocab_size) float32."""

    def greedy(self, language: str | None, max_tokens: int) -> tuple[int, ...]:
        """Greedy tokens without timestamps, through the runtime's own decoding loop."""


def speech_reference(checkpoint: SpeechCheckpoint, hf_dir: Callable[[], Path], cache: Path) -> SpeechReference:
    """The checkpoint's answers on the recordings; computed once for a checkpoint and these recordings.

    Raises:
        SourceUnavailableError: The recordings cannot be had.
        ToolkitError: transformers cannot run the checkpoint.
    """
    from converters.speech_clips import load_clips

    clips = load_clips()
    digest = hashlib.sha256(json.dumps([(clip.name, clip.language, clip.text, len(clip.samples)) for clip in clips]).encode())
    for clip in clips:
        digest.update(clip.samples.tobytes())
    folder = cache / f"speech-{digest.hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    known = open_speech_reference(folder, full_check=True)
    if known is None:
        place, windows = hf_dir(), []
        (folder / TOKENIZER_NAME).write_bytes(checkpoint.tokenizer_json)
        encode = _encoder(checkpoint.tokenizer_json)
        for index, clip in enumerate(clips):
            sound = folder / f"sound-{index}.f32"
            sound.write_bytes(clip.samples[: checkpoint.spec.n_samples].tobytes())
            windows.append(vars(_window(checkpoint.spec, clip.name, clip.language, clip.text, sound.name, encode)))
        arguments = {"hf_dir": str(place), "folder": str(folder), "spec": checkpoint.spec.as_dict(), "windows": windows}
        what = f"run the checkpoint {checkpoint.name}"
        run_in_child("converters.speech_reference:compute_speech_reference", arguments, what=what)
        known = open_speech_reference(folder)
        assert known is not None, "compute_speech_reference left no whole reference"
    return known


def speech_reference_bytes(spec: WhisperSpec) -> int:
    """What the checkpoint's answers take on disk at most, by arithmetic: float32 logits of every token said, and the sound.

    A token says a byte or more, and a transcript ends within the decoder's context.
    """
    from converters.speech_clips import stated_windows

    n_tokens = sum(min(len(text.encode()) + 1, spec.max_context_length) for text, _ in stated_windows())
    n_samples = sum(min(n_samples, spec.n_samples) for _, n_samples in stated_windows())
    return 4 * (n_tokens * spec.vocab_size + n_samples)


def _encoder(tokenizer_json: bytes) -> Callable[[str], list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    return panics_explained()(lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids))


def _window(spec: WhisperSpec, name: str, language: str, text: str, sound: str, encode: Callable[[str], list[int]]) -> SpeechWindow:
    tokens = spec.tokens
    spoken = language if tokens.is_multilingual else None
    prompt = tokens.prompt(language=spoken, timestamps=False)
    room = spec.max_context_length - len(prompt)
    text_ids = [*encode(f" {text}"), tokens.end_of_text][:room]
    return SpeechWindow(name, text, sound, spoken, prompt, tuple(text_ids))


def measure_speech(target: Target, model_path: Path, reference: SpeechReference, gates: Mapping[str, float]) -> Fidelity:
    """Run a written model over the windows and judge the figures by the gates.

    Raises:
        ToolkitError: The target's runtime refuses the file, or dies on it.
    """
    return measure_in_child("converters.verify_speech:measure_speech_here", target, model_path, reference.folder, gates)


def measure_speech_here(target_name: str, model: str, reference_folder: str) -> dict[str, Any]:
    """The figures of `Fidelity` but verdict and gates, measured in this process."""
    from converters.targets import SPEECH_TARGETS, load_target

    known = open_speech_reference(Path(reference_folder))
    assert known is not None, "the reference went away while it was in use"
    target: Any = load_target(target_name, SPEECH_TARGETS)
    scorer: SpeechScorer = target.open_speech_scorer(Path(model), known.spec)
    say = WhisperVocabulary(known.folder / TOKENIZER_NAME).text
    divergence = Divergence()
    n_equal = n_compared = 0
    ours, theirs = ErrorCount(0, 0), ErrorCount(0, 0)
    for index, window in enumerate(known.windows):
        scorer.hear(known.samples(index))
        ids, next_ids = [*window.prompt_ids, *window.text_ids[:-1]], np.array(window.text_ids, dtype=np.int64)
        divergence.add_blocks(scorer.logits(ids, len(window.prompt_ids) - 1), partial(known.rows, index), next_ids, window.name)
        greedy = scorer.greedy(window.language, known.spec["max_context_length"] // 2)
        n_equal, n_compared = n_equal + _shared(greedy, window.greedy_ids), n_compared + len(window.greedy_ids) + 1
        ours, theirs = ours + word_errors(window.said, say(greedy)), theirs + word_errors(window.said, say(window.greedy_ids))
    return {
        **divergence.figures(),
        "greedy_tokens_equal": n_equal,
        "greedy_tokens_compared": n_compared,
        "word_error_rate": ours.rate,
        "reference_word_error_rate": theirs.rate,
    }


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens before the first that differs, the end counted as one: an answer that goes on differs there."""
    pairs = zip([*first, None], [*second, None], strict=False)
    return next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), len(second) + 1)
