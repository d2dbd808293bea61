"""Opening a Whisper folder in sherpa-onnx itself, in a process of its own: what sherpa-onnx does not like ends the process."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from converters.child import ChildDeathError, run_in_child
from converters.targets.onnx_whisper_files import DECODER_NAME, ENCODER_NAME, TOKENS_NAME
from toolkit.errors import FidelityError

DISTRIBUTION, MODULE = "sherpa-onnx", "sherpa_onnx"
HOP_LENGTH, SAMPLE_RATE = 160, 16_000
# Of a window: a few seconds of sound, so that at most 30 tokens are said, and as much silence as sherpa-onnx adds itself.
SOUND_SHARE, SILENCE_SHARE = 6, 3


def opened_by(folder: Path, n_frames: int) -> dict[str, str]:
    """{"sherpa-onnx": version} once it has opened the files and answered to a sound; empty where it is not installed.

    Args:
        folder: Holds encoder.onnx, decoder.onnx and tokens.txt.
        n_frames: Frames of one window.

    Raises:
        FidelityError: It cannot open them, or their graphs fail in it.
    """
    if find_spec(MODULE) is None:
        return {}
    arguments = {"folder": str(folder), "n_frames": n_frames}
    what = "open the bundle in sherpa-onnx"
    try:
        why = run_in_child("converters.targets.onnx_whisper_sherpa:complaint", arguments, what=what)["complaint"]
    except ChildDeathError as error:
        why = error.why or error.what
    if why:
        raise FidelityError(
            "sherpa-onnx cannot use what was written", why=why, fix="report it, with the checkpoint's name; use --to litert meanwhile"
        )
    return {DISTRIBUTION: metadata.version(DISTRIBUTION)}


def complaint(folder: str, n_frames: int) -> dict[str, str]:
    """{"complaint": what sherpa-onnx had against the files}; empty if nothing.

    A graph that fails leaves an empty text and no error: only what it prints tells of it.
    """
    import numpy as np

    time_s = np.arange(n_frames // SOUND_SHARE * HOP_LENGTH) / SAMPLE_RATE
    with _printed() as log:
        hear(Path(folder), (0.3 * np.sin(2 * np.pi * 300 * time_s)).astype(np.float32), n_silent_frames=n_frames // SILENCE_SHARE)
        log.seek(0)
        text = log.read().decode("utf-8", "replace")
    return {"complaint": " ".join(text.split())[-300:] if "exception" in text.lower() else ""}


def hear(folder: Path, samples: Any, *, language: str = "en", n_silent_frames: int = -1) -> str:
    """What sherpa-onnx hears in one window of sound at 16 kHz, in this process; -1 for as much silence behind it as it likes."""
    sherpa: Any = importlib.import_module(MODULE)
    recognizer = sherpa.OfflineRecognizer.from_whisper(
        encoder=str(folder / ENCODER_NAME),
        decoder=str(folder / DECODER_NAME),
        tokens=str(folder / TOKENS_NAME),
        language=language,
        tail_paddings=n_silent_frames,
        num_threads=2,
    )
    stream = recognizer.create_stream()
    stream.accept_waveform(SAMPLE_RATE, samples)
    recognizer.decode_stream(stream)
    return str(stream.result.text)


@contextmanager
def _printed() -> Iterator[IO[bytes]]:
    """What native code prints on standard error meanwhile."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield log
        finally:
            os.dup2(kept, 2)
            os.close(kept)
