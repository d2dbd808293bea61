"""Running the two graphs of a Whisper through onnxruntime, one window and one token at a time, to compare them with the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.targets.onnx_whisper_files import DECODER_NAME, ENCODER_NAME
from converters.whisper_spec import WhisperSpec
from toolkit.errors import FormatError
from toolkit.speech.log_mel import log_mel

Logits = npt.NDArray[np.float32]


class WhisperOnnx:
    """Both graphs, opened: a `Stepper` of `toolkit.speech.whisper_decoding`.

    Args:
        folder: Holds encoder.onnx and decoder.onnx. Their hashes must have been checked: flipped weights run silently.
        spec: What a manifest says about the model.

    Raises:
        FormatError: onnxruntime refuses a file.
    """

    def __init__(self, folder: Path, spec: dict[str, Any]) -> None:
        self.dims = WhisperSpec.from_dict(spec)
        self.tokens = self.dims.tokens
        self._encoder, self._decoder = _session(folder / ENCODER_NAME), _session(folder / DECODER_NAME)
        self._never_text = np.zeros(self.dims.vocab_size, np.float32)
        self._never_text[self.tokens.end_of_text :] = -np.inf
        self._never_text[list(self.tokens.suppressed)] = -np.inf
        self._cross: dict[str, Any] = {}
        self._cache: dict[str, Any] = {}

    @property
    def max_context_length(self) -> int:
        return self.dims.max_context_length

    def encode(self, samples: Sequence[float]) -> None:
        """Take one window of sound at 16 kHz; silence is added behind."""
        window = np.zeros(self.dims.n_samples, np.float32)
        window[: len(samples)] = np.asarray(samples, np.float32)
        self.encode_mel(log_mel(window, n_mels=self.dims.n_mels))

    def encode_mel(self, mel: npt.NDArray[np.float32]) -> None:
        """Take a spectrogram of (n_mels, n_frames)."""
        names = [f"n_layer_cross_{kind}" for kind in "kv"]
        self._cross = dict(zip(names, self._encoder.run(names, {"mel": mel[None]}), strict=True))

    def step(self, token_id: int, position: int) -> OnnxStep:
        """Take one token; see `whisper_decoding.Stepper`."""
        return OnnxStep(self.steps([token_id], position)[-1], self._never_text)

    def steps(self, token_ids: Sequence[int], position: int) -> Logits:
        """Take tokens at once, as sherpa-onnx takes a prompt: logits of (n_tokens, vocab_size)."""
        if position == 0:
            shape = (self.dims.decoder.n_layers, 1, self.max_context_length, self.dims.hidden_size)
            self._cache = {f"n_layer_self_{kind}_cache": np.zeros(shape, np.float32) for kind in "kv"}
        feeds = {"tokens": np.array([token_ids], np.int64), "offset": np.array([position], np.int64)}
        feeds |= self._cross | {f"in_{name}": cache for name, cache in self._cache.items()}
        answers = self._decoder.run(["logits", *(f"out_{name}" for name in self._cache)], feeds)
        self._cache = dict(zip(self._cache, answers[1:], strict=True))
        logits: Logits = answers[0][0]
        return logits


@dataclass(frozen=True)
class OnnxStep:
    """What the graph said of the next token."""

    row: Logits
    never_text: Logits

    @property
    def text_token(self) -> int:
        """The likeliest token that is text and not suppressed."""
        return int((self.row + self.never_text).argmax())

    @property
    def log_total(self) -> float:
        """The logarithm of the sum of exp over all logits."""
        top = self.row.max()
        return float(top + np.log(np.exp(self.row - top).sum()))

    def logits(self, start: int, stop: int) -> list[float]:
        """Logits of the tokens start to stop - 1."""
        values: list[float] = self.row[start:stop].tolist()
        return values


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library raises classes of its own, without a common one
        why = " ".join(str(error).split())[:300]
        fix = "check the bundle with: toolkit verify BUNDLE --full-check, or convert again"
        raise FormatError(f"{path.name} cannot be opened by onnxruntime", why=why, fix=fix) from error
