from __future__ import annotations

import sys

import pytest

from toolkit.metrics import measure_peak_rss_bytes, measure_rss_bytes


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell")
def test_peak_memory_follows_what_is_allocated_and_stays() -> None:
    before = measure_peak_rss_bytes()
    assert before is not None
    resident = measure_rss_bytes() or before
    held = bytearray(before - resident + 64 * 2**20)
    for place in range(0, len(held), 4096):
        held[place] = 1
    peak = measure_peak_rss_bytes()
    assert peak is not None and peak >= before + 32 * 2**20
    del held
    after, now = measure_peak_rss_bytes(), measure_rss_bytes()
    assert after is not None and after >= before + 32 * 2**20
    assert now is None or now < after - 16 * 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_memory_now_is_at_most_the_peak() -> None:
    now, peak = measure_rss_bytes(), measure_peak_rss_bytes()
    assert now is not None and peak is not None and 2**20 < now <= peak
