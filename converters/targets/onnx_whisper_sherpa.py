"""Opening a Whisper folder in sherpa-onnx itself, in a process of its own: what sherpa-onnx does not like ends the process."""

from __future__ import annotations

import importlib
import os
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "printed.txt"
        arguments = {"folder": str(folder), "n_frames": n_frames, "log": str(log)}
        died = ""
        try:
            died = run_in_child("converters.targets.onnx_whisper_sherpa:try_out", arguments, what="open it in sherpa-onnx")["error"]
        except ChildDeathError as error:
            died = error.cause
        printed = log.read_text("utf-8", "replace") if log.is_file() else ""
    if why := _complaint(printed, died):
        raise FidelityError(
            "sherpa-onnx cannot use what was written", why=why, fix="report it, with the checkpoint's name; use --to litert meanwhile"
        )
    return {DISTRIBUTION: metadata.version(DISTRIBUTION)}


def try_out(folder: str, n_frames: int, log: str) -> dict[str, str]:
    """Open the files and let them hear a tone; what native code prints meanwhile goes to `log`. Returns {"error": text or ""}."""
    import numpy as np

    time_s = np.arange(n_frames // SOUND_SHARE * HOP_LENGTH) / SAMPLE_RATE
    with Path(log).open("wb") as stream:
        os.dup2(stream.fileno(), 2)
    try:
        hear(Path(folder), (0.3 * np.sin(2 * np.pi * 300 * time_s)).astype(np.float32), n_silent_frames=n_frames // SILENCE_SHARE)
    except RuntimeError as error:  # what pybind11 makes of onnxruntime's own class
        return {"error": str(error)}
    return {"error": ""}


def _complaint(printed: str, died: str) -> str:
    """What sherpa-onnx had against the files, empty if nothing: a graph that fails gives an empty text, and only prints why."""
    _, found, exception = printed.partition("Caught exception:")
    text = " ".join((exception if found else printed if died else "").split())
    return f"{died}{': ' if died and text else ''}{text}"[:300]


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
