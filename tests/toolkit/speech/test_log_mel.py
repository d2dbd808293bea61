from __future__ import annotations

import numpy as np
import pytest

from toolkit.speech.log_mel import HOP_LENGTH, SAMPLE_RATE, log_mel, mel_filters

N_SAMPLES = 480_000


def sounds() -> dict[str, np.ndarray]:
    """Noise, a tone with a long silence, a loud click, speech-like sweeps, and nothing at all."""
    rng = np.random.default_rng(20261130)
    time_s = np.arange(N_SAMPLES) / SAMPLE_RATE
    click = np.zeros(N_SAMPLES)
    click[1000] = 1.0
    return {
        "noise": rng.standard_normal(N_SAMPLES) * 0.1,
        "a tone, then silence": np.sin(2 * np.pi * 440 * time_s) * (time_s < 3),
        "a click": click,
        "a sweep": 0.5 * np.sin(2 * np.pi * (100 + 3000 * time_s / 30) * time_s),
        "silence": np.zeros(N_SAMPLES),
    }


def theirs(samples: np.ndarray, n_mels: int) -> np.ndarray:
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=n_mels)
    features: np.ndarray = extractor(samples.astype(np.float32), sampling_rate=SAMPLE_RATE, return_tensors="np").input_features[0]
    return features


@pytest.mark.parametrize("n_mels", [80, 128])
@pytest.mark.parametrize("name", sounds())
def test_the_spectrogram_is_transformers_own(name: str, n_mels: int) -> None:
    samples = sounds()[name].astype(np.float32)
    ours = log_mel(samples, n_mels=n_mels)
    assert ours.shape == (n_mels, N_SAMPLES // HOP_LENGTH) and ours.dtype == np.float32
    assert np.abs(ours - theirs(samples, n_mels)).max() <= 1e-4


def test_a_shifted_window_or_another_scale_would_be_seen() -> None:
    """The twin: the same bound refuses a spectrogram that begins one sample late, and one 0.1 % too loud."""
    samples = sounds()["noise"].astype(np.float32)
    expected = theirs(samples, 80)
    for mutant in (np.roll(samples, 1), samples * 1.001):
        assert np.abs(log_mel(mutant.astype(np.float32)) - expected).max() > 1e-4


@pytest.mark.parametrize("n_mels", [16, 80, 128])
def test_the_filters_are_slaneys(n_mels: int) -> None:
    from transformers.audio_utils import mel_filter_bank

    expected = mel_filter_bank(201, n_mels, 0.0, 8000.0, SAMPLE_RATE, norm="slaney", mel_scale="slaney").T
    assert np.abs(mel_filters(n_mels) - expected).max() <= 1e-9 * np.abs(expected).max() + 1e-12


def test_short_or_stacked_sound_is_refused() -> None:
    for shape in ((400,), (2, 1000), (0,)):
        with pytest.raises(ValueError, match="samples of shape"):
            log_mel(np.zeros(shape, np.float32))
