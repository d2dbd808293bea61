"""Whisper's front end: 16 kHz sound to a log-mel spectrogram. numpy is imported on use; the same arithmetic is in our LiteRT graphs.

Frames of 400 samples every 160, periodic Hann window, power spectrum, mel filters on Slaney's scale with areas of one, log10,
the loudest 8 decades, scaled to about -1..1. Sound is mirrored by 200 samples at both ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float32]]

SAMPLE_RATE = 16_000
FRAME_LENGTH, HOP_LENGTH = 400, 160
N_BINS = FRAME_LENGTH // 2 + 1
FLOOR = 1e-10  # power under which nothing is told apart
DECADES = 8.0
# Slaney's mel scale (Auditory Toolbox, 1998): linear up to 1 kHz, then 27 steps for a factor of 6.4.
_LINEAR_HZ_PER_MEL = 200.0 / 3
_LINEAR_END_HZ, _LOG_STEPS, _LOG_FACTOR = 1000.0, 27.0, 6.4


def log_mel(samples: Array, *, n_mels: int = 80) -> Array:
    """The log-mel spectrogram of one window.

    Args:
        samples: (n_samples,) at 16 kHz, in -1..1, padded with zeros to the window; at least 401 samples.
        n_mels: Bands, 80 or 128.

    Returns:
        (n_mels, n_samples // 160) float32.

    Raises:
        ValueError: The sound is shorter than its mirrored ends, or not one-dimensional.

    Error bound:
        Within 1e-4 of transformers' WhisperFeatureExtractor, value by value.
    """
    import numpy as np

    if samples.ndim != 1 or samples.shape[0] <= FRAME_LENGTH:
        raise ValueError(f"samples of shape {samples.shape}; one axis of more than {FRAME_LENGTH} is needed")
    padded = np.pad(np.asarray(samples, np.float64), FRAME_LENGTH // 2, mode="reflect")
    n_frames = samples.shape[0] // HOP_LENGTH
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME_LENGTH)[::HOP_LENGTH][:n_frames]
    spectrum = np.fft.rfft(frames * hann_window(), axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    bands = np.log10(np.maximum(mel_filters(n_mels) @ power.T, FLOOR))
    bands = np.maximum(bands, bands.max() - DECADES)
    result: Array = ((bands + 4.0) / 4.0).astype(np.float32)
    return result


def hann_window() -> Any:
    """(400,) float64: the periodic Hann window, 0 at its first sample."""
    import numpy as np

    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME_LENGTH) / FRAME_LENGTH)


def mel_filters(n_mels: int) -> Any:
    """(n_mels, 201) float64: triangles over the bins of the spectrum, from 0 to 8 kHz, each with an area of one (per Hz)."""
    import numpy as np

    top = _mel(SAMPLE_RATE / 2)
    edges = np.array([_hz(top * index / (n_mels + 1)) for index in range(n_mels + 2)])
    bins = np.arange(N_BINS) * SAMPLE_RATE / FRAME_LENGTH
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]


def _mel(hz: float) -> float:
    import math

    if hz < _LINEAR_END_HZ:
        return hz / _LINEAR_HZ_PER_MEL
    return _LINEAR_END_HZ / _LINEAR_HZ_PER_MEL + _LOG_STEPS * math.log(hz / _LINEAR_END_HZ) / math.log(_LOG_FACTOR)


def _hz(mel: float) -> float:
    linear_end = _LINEAR_END_HZ / _LINEAR_HZ_PER_MEL
    if mel < linear_end:
        return mel * _LINEAR_HZ_PER_MEL
    return float(_LINEAR_END_HZ * _LOG_FACTOR ** ((mel - linear_end) / _LOG_STEPS))
