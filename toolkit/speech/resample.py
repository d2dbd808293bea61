"""Changing a sampling rate by a windowed-sinc filter, with the standard library; numpy makes it faster where it is installed.

Source: polyphase form of the band-limited interpolator with a Kaiser window (Kaiser and Schafer, 1980). 64 zero crossings and
beta 9 keep what folds back over half the lower rate more than 80 dB down, and everything under 0.8 of that half within 0.1 dB.

Two rates with a small common divisor (44101 and 16000) would need a filter for each of thousands of positions, 24 seconds of work
before the first sample; they get a table of `TABLE_PHASES` positions and a straight line between neighbours, whose error is below
(pi / TABLE_PHASES)^2 / 8 of the signal, 106 dB down.
"""

from __future__ import annotations

import array
import math
from collections.abc import Sequence
from operator import mul
from typing import TypeAlias

from toolkit.errors import UsageError

ZERO_CROSSINGS = 32  # on each side, counted at the lower of the two rates
BETA = 9.0
ROLL_OFF = 0.91  # cut-off over half the lower rate: the transition ends where folding begins
MAX_PHASES = 1024  # more than any two rates of recorders need: 11025 to 16000 Hz has 640
TABLE_PHASES = 512
MIN_RATE, MAX_RATE = 1_000, 384_000
_BLOCK = 4096
Samples: TypeAlias = "array.array[float]"


def resample(samples: Samples, *, from_rate: int, to_rate: int) -> Samples:
    """The same sound at another rate.

    Args:
        samples: One channel of 4-byte floats.
        from_rate, to_rate: Samples per second, 1,000 to 384,000.

    Returns:
        ceil(len(samples) * to_rate / from_rate) samples.

    Raises:
        UsageError: A rate outside the range.
    """
    for rate in (from_rate, to_rate):
        if not MIN_RATE <= rate <= MAX_RATE:
            raise UsageError(
                f"a sampling rate of {rate} Hz cannot be changed", why=f"{MIN_RATE} to {MAX_RATE} Hz can", fix="record at 16000 Hz"
            )
    if from_rate == to_rate or not samples:
        return array.array("f", samples)
    common = math.gcd(from_rate, to_rate)
    up, down = to_rate // common, from_rate // common
    is_exact = up <= MAX_PHASES
    filters, reach = phase_filters(up, down) if is_exact else table_filters(up, down)
    n_out = -(-len(samples) * up // down)
    padded = array.array("f", bytes(4 * reach)) + samples + array.array("f", bytes(4 * (reach + -(-down // up) + 1)))
    with_numpy, plain = (_with_numpy, _plain) if is_exact else (_between_with_numpy, _between_plain)
    try:
        return with_numpy(padded, filters, up, down, n_out)
    except ModuleNotFoundError:
        return plain(padded, filters, up, down, n_out)


def phase_filters(up: int, down: int) -> tuple[list[array.array[float]], int]:
    """One filter for each of the `up` positions an output can have between two inputs, and how far each reaches to the left.

    Every filter sums to one, so that a constant stays what it is.
    """
    return _filters(up, down, [phase / up for phase in range(up)])


def table_filters(up: int, down: int) -> tuple[list[array.array[float]], int]:
    """The same for `TABLE_PHASES` positions and the next input's own, to take what lies between two of them from."""
    return _filters(up, down, [place / TABLE_PHASES for place in range(TABLE_PHASES + 1)])


def _filters(up: int, down: int, offsets: Sequence[float]) -> tuple[list[array.array[float]], int]:
    scale = ROLL_OFF * min(1.0, up / down)  # cut-off over half the input rate
    reach = math.ceil(ZERO_CROSSINGS * max(1.0, down / up))
    filters = []
    for offset in offsets:
        taps = [_tap(index - reach - offset, scale, reach) for index in range(2 * reach + 1)]
        total = sum(taps)
        filters.append(array.array("d", [tap / total for tap in taps]))
    return filters, reach


def _tap(distance: float, scale: float, reach: int) -> float:
    share = distance / (reach + 1)
    if abs(share) >= 1:
        return 0.0
    x = math.pi * scale * distance
    return (math.sin(x) / x if x else 1.0) * _bessel(BETA * math.sqrt(1 - share * share))


def _bessel(x: float) -> float:
    """The modified Bessel function of order zero, by its power series."""
    total = term = 1.0
    for k in range(1, 60):
        term *= (x / (2 * k)) ** 2
        total += term
        if term < 1e-17 * total:
            break
    return total


def _with_numpy(padded: Samples, filters: Sequence[array.array[float]], up: int, down: int, n_out: int) -> Samples:
    import numpy as np

    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(padded, np.float32), len(filters[0]))
    out = np.empty(n_out, np.float32)
    for first in range(min(up, n_out)):
        places = range(first, n_out, up)
        start = first * down // up
        rows = windows[start : start + (len(places) - 1) * down + 1 : down]
        out[first::up] = rows @ np.frombuffer(filters[first * down % up], np.float64)
    return array.array("f", out.tobytes())


def _plain(padded: Samples, filters: Sequence[array.array[float]], up: int, down: int, n_out: int) -> Samples:
    width = len(filters[0])
    out = array.array("f", bytes(4 * n_out))
    for index in range(n_out):
        start, phase = divmod(index * down, up)
        out[index] = sum(map(mul, padded[start : start + width], filters[phase]))
    return out


def _between_with_numpy(padded: Samples, filters: Sequence[array.array[float]], up: int, down: int, n_out: int) -> Samples:
    import numpy as np

    table = np.stack([np.frombuffer(taps, np.float64) for taps in filters])
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(padded, np.float32), table.shape[1])
    out = np.empty(n_out, np.float32)
    for first in range(0, n_out, _BLOCK):
        starts, rest = np.divmod(np.arange(first, min(first + _BLOCK, n_out), dtype=np.int64) * down, up)
        places, shares = np.divmod(rest * TABLE_PHASES, up)
        share = (shares / up)[:, None]
        taps = table[places] * (1 - share) + table[places + 1] * share
        out[first : first + len(starts)] = np.einsum("ij,ij->i", windows[starts], taps)
    return array.array("f", out.tobytes())


def _between_plain(padded: Samples, filters: Sequence[array.array[float]], up: int, down: int, n_out: int) -> Samples:
    width = len(filters[0])
    out = array.array("f", bytes(4 * n_out))
    for index in range(n_out):
        start, rest = divmod(index * down, up)
        place, share = divmod(rest * TABLE_PHASES, up)
        window = padded[start : start + width]
        left, right = (sum(map(mul, window, filters[place + step])) for step in (0, 1))
        out[index] = left + (right - left) * share / up
    return out
