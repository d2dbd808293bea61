"""Our LiteRT Whisper: a bundle opened through LiteRT's C library. Needs neither numpy nor a tokenizer library.

The graph takes the waveform itself. A step returns the keys and values of its own token only; they are copied into the cache,
a few KB, at the token's position. So the same buffers serve every step of every window.
"""

from __future__ import annotations

import array
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from toolkit.bundle import Bundle
from toolkit.errors import FormatError, UsageError
from toolkit.speech.litert_c import LiteRtLibrary, TensorBuffer, open_library
from toolkit.speech.litert_model import LiteRtModel
from toolkit.speech.whisper_tokens import WhisperTokens

ENCODE, DECODE = "encode", "decode"
FLOAT_BYTES = 4
MAX_LAYERS, MAX_WIDTH, MAX_POSITIONS, MAX_SAMPLES = 64, 2**14, 2**14, 2**24
HOP_LENGTH = 160


@dataclass(frozen=True)
class WhisperDims:
    """What a manifest says about a Whisper's shapes, checked."""

    n_layers: int
    n_heads: int
    head_dim: int
    n_mels: int
    n_audio_positions: int
    max_context_length: int
    vocab_size: int

    @property
    def n_samples(self) -> int:
        """Samples of one window, at 16 kHz."""
        return 2 * self.n_audio_positions * HOP_LENGTH

    @classmethod
    def from_spec(cls, spec: dict[str, Any], name: str) -> WhisperDims:
        """Read a manifest's `spec`.

        Raises:
            FormatError: A size is missing or out of range.
        """
        decoder = spec.get("decoder")
        decoder = decoder if isinstance(decoder, dict) else {}
        width = _size(spec, "hidden_size", MAX_WIDTH, name)
        n_heads = _size(decoder, "n_heads", MAX_WIDTH, name)
        if width % n_heads:
            raise _unsound(name, f"{n_heads} heads do not divide a width of {width}")
        return cls(
            n_layers=_size(decoder, "n_layers", MAX_LAYERS, name),
            n_heads=n_heads,
            head_dim=width // n_heads,
            n_mels=_size(spec, "n_mels", 1024, name),
            n_audio_positions=_size(spec, "n_audio_positions", MAX_POSITIONS, name),
            max_context_length=_size(spec, "max_context_length", MAX_POSITIONS, name),
            vocab_size=_size(spec, "vocab_size", 2**20, name),
        )

    def shapes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """The tensors the graph must have: signature and side -> name -> shape."""
        n, heads, width = self.n_audio_positions, self.n_heads, self.head_dim
        cross: dict[str, tuple[int, ...]] = {}
        past: dict[str, tuple[int, ...]] = {}
        new: dict[str, tuple[int, ...]] = {}
        for index in range(self.n_layers):
            cross |= {f"cross_k_{index}": (1, heads, n, width), f"cross_v_{index}": (1, heads, width, n)}
            past |= {f"past_{kind}_{index}": (1, heads, self.max_context_length, width) for kind in "kv"}
            new |= {f"new_{kind}_{index}": (1, heads, 1, width) for kind in "kv"}
        return {
            "encode inputs": {"waveform": (1, self.n_samples)},
            "encode outputs": {"log_mel": (1, self.n_mels, 2 * n), **cross},
            "decode inputs": {"token": (1, 1), "position": (1,), **past, **cross},
            "decode outputs": {"logits": (1, self.vocab_size), "text_token": (1,), "log_total": (1,), **new},
        }


class WhisperLiteRt:
    """An opened model, a `Stepper` of `whisper_decoding`. Not safe to use from two threads at once.

    Args:
        path: The .tflite. Its hash must have been checked: the native parser dies on a damaged file.
        spec: What a manifest says about it.
        name: What errors call it.
        n_threads: CPU threads.
        library: From `open_library`; the first installed one by default.

    Raises:
        FormatError: Spec and graph contradict each other.
        BackendUnavailableError: No LiteRT library is installed.
        EngineError: The library refuses the file.
    """

    def __init__(self, path: Path, spec: dict[str, Any], *, name: str, n_threads: int = 2, library: LiteRtLibrary | None = None) -> None:
        if not 1 <= n_threads <= 64:
            raise UsageError(f"{n_threads} threads are not possible", why="1 to 64 are", fix="use 2")
        self.dims = WhisperDims.from_spec(spec, name)
        self.tokens = WhisperTokens.from_dict(spec.get("tokens"), vocab_size=self.dims.vocab_size, origin=f"{name}'s manifest")
        self._model = LiteRtModel(path, library or open_library(), n_threads=n_threads)
        try:
            self._check_graph(name)
            self._make_buffers()
        except BaseException:
            self._model.close()
            raise

    @classmethod
    def open(cls, bundle: Bundle, *, n_threads: int = 2, library: LiteRtLibrary | None = None) -> WhisperLiteRt:
        """Open a bundle, whose hashes `Bundle.open` has checked.

        Raises:
            UsageError: It is no LiteRT Whisper.
            FormatError, BackendUnavailableError, EngineError: As the constructor.
        """
        manifest = bundle.manifest
        if manifest.target != "litert" or manifest.spec.get("model_type") != "whisper":
            raise UsageError(
                f"{bundle.name} is no Whisper for LiteRT",
                why=f"it is a {manifest.spec.get('model_type')} for {manifest.target}",
                fix="convert one: convert whisper-tiny.en --to litert",
            )
        return cls(bundle.entry_path, manifest.spec, name=bundle.name, n_threads=n_threads, library=library)

    def _check_graph(self, name: str) -> None:
        signatures = self._model.signatures
        if not {ENCODE, DECODE} <= set(signatures):
            raise _unsound(name, f"its graph has the signatures {', '.join(sorted(signatures))}, not {ENCODE} and {DECODE}")
        for place, expected in self.dims.shapes().items():
            signature, side = place.split()
            found = {tensor: kind.shape for tensor, kind in getattr(signatures[signature], side).items()}
            if found != expected:
                wrong = sorted(tensor for tensor in {*found, *expected} if found.get(tensor) != expected.get(tensor))[0]
                raise _unsound(name, f"{place}: {wrong} is {found.get(wrong)}, its manifest asks for {expected.get(wrong)}")

    def _make_buffers(self) -> None:
        model = self._model
        encode, decode = model.signatures[ENCODE], model.signatures[DECODE]
        encoded = {name: model.output_buffer(ENCODE, name) for name in encode.outputs}
        self._waveform, self._log_mel = model.input_buffer(ENCODE, "waveform"), encoded["log_mel"]
        inputs = {name: encoded[name] if name in encoded else model.input_buffer(DECODE, name) for name in decode.inputs}
        outputs = {name: model.output_buffer(DECODE, name) for name in decode.outputs}
        for name, buffer in inputs.items():
            if name.startswith("past_"):
                buffer.clear()
        self._token, self._position = inputs["token"], inputs["position"]
        pairs = [(f"new_{kind}_{index}", f"past_{kind}_{index}") for index in range(self.dims.n_layers) for kind in "kv"]
        self._moves = [(outputs[new], inputs[past]) for new, past in pairs]
        self._outputs = outputs
        self._encode = model.runner(ENCODE, {"waveform": self._waveform}, encoded)
        self._decode = model.runner(DECODE, inputs, outputs)

    @property
    def max_context_length(self) -> int:
        return self.dims.max_context_length

    @property
    def n_samples(self) -> int:
        """Samples of one window, at 16 kHz."""
        return self.dims.n_samples

    def encode(self, samples: Sequence[float]) -> None:
        """Take one window of sound: at most `n_samples` values in -1..1 at 16 kHz; silence is added behind.

        Raises:
            UsageError: There are more samples, or one is no finite number.
        """
        window = samples if isinstance(samples, array.array) and samples.typecode == "f" else array.array("f", samples)
        if len(window) > self.n_samples:
            raise UsageError(
                f"{len(window)} samples do not fit one window", why=f"it holds {self.n_samples}", fix="cut the sound into windows"
            )
        total = sum(window)
        if total != total or total in (float("inf"), float("-inf")):
            raise UsageError(
                "the sound holds values that are no numbers", why="a sample is NaN or infinite", fix="record or decode it again"
            )
        self._waveform.clear()
        self._waveform.write(window)
        self._encode()

    def log_mel(self) -> array.array[float]:
        """The spectrogram of the window in place, (n_mels, n_frames) row by row: what the graph's front end made of the sound."""
        return _floats(self._log_mel.read())

    def step(self, token_id: int, position: int) -> LiteRtStep:
        """Take one token; see `whisper_decoding.Stepper`.

        Raises:
            ValueError: The token or the position is outside the model: the graph would read beyond its tables.
        """
        if not 0 <= token_id < self.dims.vocab_size or not 0 <= position < self.max_context_length:
            raise ValueError(f"token {token_id} at position {position}; {self.dims.vocab_size} tokens, {self.max_context_length} positions")
        self._token.write(array.array("i", [token_id]))
        self._position.write(array.array("i", [position]))
        self._decode()
        self._keep(position)
        text_token = array.array("i", self._outputs["text_token"].read())[0]
        log_total = _floats(self._outputs["log_total"].read())[0]
        return LiteRtStep(text_token, log_total, self._outputs["logits"])

    def _keep(self, position: int) -> None:
        """Copy the token's keys and values to its row of each head."""
        row = self.dims.head_dim * FLOAT_BYTES
        stride = self.max_context_length * row
        for new, past in self._moves:
            with new.locked(write=False) as source, past.locked(write=True) as target:
                for head in range(self.dims.n_heads):
                    ctypes.memmove(target + head * stride + position * row, source + head * row, row)

    def close(self) -> None:
        """Free the model and its buffers."""
        self._model.close()

    def __enter__(self) -> WhisperLiteRt:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True)
class LiteRtStep:
    """What the graph said; logits are read from its buffer when asked for."""

    text_token: int
    log_total: float
    buffer: TensorBuffer

    def logits(self, start: int, stop: int) -> array.array[float]:
        """Logits of the tokens start to stop - 1."""
        return _floats(self.buffer.read((stop - start) * FLOAT_BYTES, start * FLOAT_BYTES))


def _floats(raw: bytes) -> array.array[float]:
    values = array.array("f")
    values.frombytes(raw)
    return values


def _size(data: dict[str, Any], key: str, most: int, name: str) -> int:
    value = data.get(key)
    if type(value) is not int or not 1 <= value <= most:
        raise _unsound(name, f"spec.{key} is {str(value)[:20]}; 1 to {most} is possible")
    return value


def _unsound(name: str, why: str) -> FormatError:
    return FormatError(
        f"{name} is no sound Whisper bundle", why=why, fix="copy the bundle again, or convert it again (convert SOURCE --to litert --force)"
    )
