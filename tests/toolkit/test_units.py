"""Sizes and figures: what is read, what is refused and in which words, and what is printed."""

from __future__ import annotations

import pytest

from toolkit.errors import UsageError
from toolkit.units import format_figure, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1024), (300, 300), ("1.5KiB", 1536), (" 2 gib ", 2**31), ("380 MB", 380_000_000), ("0.001kB", 1)]
)
def test_a_size_is_a_number_and_a_unit(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["nan", "inf", "", "GiB", "1e3MiB", "1.2.3MiB", "1,5GiB", "0x10", "two MiB", "\u0661x"])
def test_what_has_no_number_is_told_so_and_not_its_units(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)
    assert caught.value.what == f"{text!r} is not a size" and "number" in caught.value.why and "KiB" not in caught.value.why


@pytest.mark.parametrize(("text", "n_bytes"), [("0", 0), ("-1", -1), ("-2KiB", -2048), ("0.4B", 0)])
def test_a_size_that_is_no_room_is_named(text: str, n_bytes: int) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)
    assert repr(text) in caught.value.what and caught.value.why == f"it is {n_bytes} bytes"


def test_a_number_beyond_all_sizes_is_refused() -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_bytes("9" * 400)


@pytest.mark.parametrize("text", ["2GB", "3 lots", "1TB"])
def test_a_unit_that_is_not_known_is_told_which_are(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)
    assert caught.value.what == f"{text!r} is not a size" and "KiB" in caught.value.why and "ambiguous" in caught.value.why


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
