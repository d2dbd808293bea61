from __future__ import annotations

import array
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import UsageError
from toolkit.speech import resample as module
from toolkit.speech.resample import phase_filters, resample


def tone(hz: float, rate: int, seconds: float = 0.5) -> array.array[float]:
    return array.array("f", [math.sin(2 * math.pi * hz * index / rate) for index in range(int(rate * seconds))])


def inner(samples: array.array[float]) -> np.ndarray:
    """Without the ends, where the filter reaches into silence."""
    return np.array(samples[len(samples) // 4 : -len(samples) // 4])


def decibels(samples: np.ndarray) -> float:
    return 10 * math.log10(2 * float(np.mean(samples**2)) + 1e-20)


RATES = [8000, 11025, 22050, 24000, 44100, 48000, 96000]
ODD_RATES = [16001, 44101]  # no common divisor with 16000: 16000 positions between two inputs


@pytest.mark.parametrize("rate", [*RATES, *ODD_RATES])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.8])
def test_a_tone_below_the_edge_keeps_its_shape(rate: int, share: float) -> None:
    hz = share * min(rate, 16000) / 2
    out = resample(tone(hz, rate), from_rate=rate, to_rate=16000)
    expected = np.array(tone(hz, 16000))
    assert len(out) == math.ceil(int(rate * 0.5) * 16000 / rate)
    n = min(len(out), len(expected))
    error = np.array(out[:n])[n // 4 : -n // 4] - expected[:n][n // 4 : -n // 4]
    assert decibels(error) < -38  # 0.1 dB of level


@pytest.mark.parametrize("rate", [24000, 44100, 48000, 96000, 44101])
def test_a_tone_above_the_edge_is_gone_instead_of_folding_back(rate: int) -> None:
    for hz in (8100, 9000, 11000):
        assert decibels(inner(resample(tone(hz, rate), from_rate=rate, to_rate=16000))) < -70


def test_dropping_samples_would_be_seen() -> None:
    """The twin: what a plain "every third sample" does to a tone of 9 kHz."""
    assert decibels(inner(tone(9000, 48000)[::3])) > -3


def test_a_constant_stays_what_it_is() -> None:
    out = resample(array.array("f", [0.25]) * 8000, from_rate=44100, to_rate=16000)
    assert np.abs(inner(out) - 0.25).max() < 1e-6


@pytest.mark.parametrize(("from_rate", "to_rate"), [(48000, 16000), (44100, 16000), (8000, 16000), (44101, 16000)])
def test_the_standard_library_and_numpy_say_the_same(from_rate: int, to_rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    noise = array.array("f", rng.standard_normal(3001).astype(np.float32).tobytes())
    fast = resample(noise, from_rate=from_rate, to_rate=to_rate)

    def missing(*_: object) -> None:
        raise ModuleNotFoundError("numpy")

    monkeypatch.setattr(module, "_with_numpy", missing)
    slow = resample(noise, from_rate=from_rate, to_rate=to_rate)
    assert len(fast) == len(slow) and np.abs(np.array(fast) - np.array(slow)).max() < 1e-6


@settings(deadline=None, max_examples=40)
@given(n=st.integers(0, 50), from_rate=st.sampled_from(RATES), to_rate=st.sampled_from(RATES))
def test_any_short_sound_has_the_length_its_rates_ask_for(n: int, from_rate: int, to_rate: int) -> None:
    out = resample(array.array("f", [0.5] * n), from_rate=from_rate, to_rate=to_rate)
    assert len(out) == math.ceil(n * to_rate / from_rate)


@pytest.mark.parametrize("rate", [0, -16000, 999, 500_000])
def test_rates_no_recorder_has_are_refused(rate: int) -> None:
    with pytest.raises(UsageError, match="cannot be changed"):
        resample(array.array("f", [0.0]), from_rate=rate, to_rate=16000)


def test_odd_rates_need_no_more_filters_than_the_table_has() -> None:
    """One for each of 16000 positions takes 24 seconds."""
    for rate in ODD_RATES:
        assert len(module.table_filters(16000, rate)[0]) == module.TABLE_PHASES + 1
    made: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "phase_filters", lambda up, down: made.append(up))
        resample(tone(440, 44101, 0.01), from_rate=44101, to_rate=16000)
    assert made == []


def test_between_two_places_of_the_table_lies_what_the_exact_filter_says(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = array.array("f", np.random.default_rng(2).standard_normal(2000).astype(np.float32).tobytes())
    exact = np.array(resample(noise, from_rate=11025, to_rate=16000))
    monkeypatch.setattr(module, "MAX_PHASES", 1)
    assert decibels(np.array(resample(noise, from_rate=11025, to_rate=16000)) - exact) < -95
    monkeypatch.setattr(module, "TABLE_PHASES", 8)
    assert decibels(np.array(resample(noise, from_rate=11025, to_rate=16000)) - exact) > -60, "the twin: a coarse table is seen"


def test_every_filter_sums_to_one() -> None:
    for filters in (phase_filters(160, 441)[0], phase_filters(1, 3)[0]):
        assert all(abs(sum(taps) - 1) < 1e-12 for taps in filters)


def test_importing_it_loads_no_numpy() -> None:
    modules = ", ".join(f"toolkit.speech.{name}" for name in ("resample", "wav", "log_mel", "whisper_litert", "transcription"))
    subprocess.run([sys.executable, "-c", f"import sys, {modules}; assert 'numpy' not in sys.modules"], check=True)
