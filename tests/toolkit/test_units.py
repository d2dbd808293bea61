"""Sizes and figures: what is read, what is refused and in which words, and what is printed."""

from __future__ import annotations

import pytest

from toolkit.units import format_figure


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ttft_s", 0.0123, "12.3 ms"),
        ("ttft_extra_s", -0.0123, "-12.3 ms"),
        ("load_s", 1.5, "1.50 s"),
        ("wall_s", 61.25, "61.25 s"),
        ("decode_tokens_per_s", 98.12, "98.1 tokens/s"),
        ("prefill_tokens_per_s", 1234.5, "1234 tokens/s"),
        ("decode_pieces_per_s", 123.44, "123.4/s"),
        ("mapped_rss_bytes", 2**20, "1 MiB"),
        ("peak_rss_bytes", 380e6, "362 MiB"),
        ("energy_j", 12.34, "12.3 J"),
        ("prefill_j_per_token", 0.01234, "0.0123 J"),
        ("tokens_per_j", 1.23456, "1.2346"),
        ("temperature_c", 41.55, "41.5 °C"),
        ("wall_ratio", 1.23456, "1.2346"),
    ],
)
def test_a_figure_is_printed_with_the_unit_its_name_ends_with(name: str, value: float, text: str) -> None:
    assert format_figure(name, value) == text
