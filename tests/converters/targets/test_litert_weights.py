"""Codes, scales and offsets as LiteRT multiplies them, beside slow arithmetic in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converters.stored_blocks import StoredBlocks
from converters.targets.litert_weights import from_blocks, kernel_scale, pack_int4, round_to_int8, unpack_int4

RNG = np.random.default_rng(20261130)


def blocks_of(scales: np.ndarray, offsets: np.ndarray, *, group_size: int = 32, bits: int = 4) -> StoredBlocks:
    shape = (scales.shape[0], scales.shape[1] * group_size)
    codes = RNG.integers(0, 2**bits, shape, dtype=np.uint8)
    return StoredBlocks("Q4_1", bits, group_size, codes, scales.astype(np.float32), offsets.astype(np.float32))


def half(*shape: int) -> np.ndarray:
    return (RNG.random(shape) * 0.01 + 1e-3).astype(np.float16).astype(np.float32)


def test_codes_are_kept_and_values_move_less_than_a_bfloat16_does() -> None:
    blocks = blocks_of(half(24, 4), -half(24, 4) * 7)
    made = from_blocks(blocks)
    assert made.sums is not None
    assert np.array_equal(made.groups.codes, blocks.codes.astype(np.int8) - 8)
    steps = np.abs(made.dequantized() - blocks.dequantized()).reshape(24, 4, 32) / blocks.scales[..., None]
    offset_step = made.sums.scales[:, None, None] / blocks.scales[..., None]
    assert (steps <= 15 * 2.0**-9 + 0.5 * offset_step + 1e-4).all()
    assert steps.max() > 0, "no difference at all means that nothing was rounded, so nothing was tested"


def test_a_scale_turned_round_means_the_same_weights() -> None:
    """GGUF's Q4_0 has negative scales, LiteRT has none."""
    scales = half(8, 2) * np.where(RNG.random((8, 2)) < 0.5, -1, 1)
    blocks = blocks_of(scales, -8 * scales)
    made = from_blocks(blocks)
    assert (made.groups.scales > 0).all() and made.sums is not None
    worst = np.abs(made.dequantized() - blocks.dequantized()).max()
    assert worst < 0.1 * np.abs(scales).max()
    unturned = replace(blocks, scales=np.abs(scales))
    assert np.abs(from_blocks(unturned).dequantized() - blocks.dequantized()).max() > 5 * worst, "must-fail twin: signs matter"


def test_symmetric_blocks_have_no_offsets() -> None:
    scales = kernel_scale(half(8, 2))
    made = from_blocks(blocks_of(scales, -8 * scales))
    assert made.sums is None
    assert from_blocks(blocks_of(scales, -7 * scales)).sums is not None


def test_codes_of_other_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="5-bit codes"):
        from_blocks(blocks_of(half(2, 2), half(2, 2), bits=5))


def test_kernel_scales_are_exact_in_float16_and_bfloat16() -> None:
    scales = np.concatenate([10.0 ** RNG.uniform(-12, 3, 5000), [0.0, 2.0**-16, 60000.0]]).astype(np.float32)
    stored = kernel_scale(scales)
    assert np.array_equal(stored.astype(np.float16).astype(np.float32), stored)
    assert not (stored.view(np.uint32) & 0xFFFF).any()
    usual = scales > 2.0**-16
    assert (np.abs(stored[usual] - scales[usual]) <= scales[usual] * 2.0**-8).all()
    assert not np.array_equal(scales.astype(np.float16).astype(np.float32), scales), "must-fail twin: these scales do need rounding"


def test_kernel_scales_round_to_nearest_even_as_torch_does() -> None:
    import torch

    scales = (10.0 ** RNG.uniform(-4, 3, 5000)).astype(np.float32)
    assert np.array_equal(kernel_scale(scales), torch.from_numpy(scales).bfloat16().float().numpy())


def test_rounding_to_int8_is_within_half_a_step_and_zero_rows_stay_zero() -> None:
    weight = RNG.standard_normal((6, 40)).astype(np.float32)
    weight[2] = 0
    rows = round_to_int8(weight)
    assert (np.abs(rows.dequantized() - weight) <= rows.scales[:, None] * 0.5001).all()
    assert (rows.dequantized()[2] == 0).all() and rows.scales[2] == 1
    assert np.abs(rows.codes[[0, 1, 3, 4, 5]]).max(axis=1).tolist() == [127] * 5


@given(st.integers(1, 5), st.integers(1, 8), st.randoms(use_true_random=False))
def test_packing_can_be_undone(n_rows: int, n_pairs: int, random: object) -> None:
    codes = np.random.default_rng(random.getrandbits(32)).integers(-8, 8, (n_rows, 2 * n_pairs)).astype(np.int8)  # type: ignore[attr-defined]
    packed = pack_int4(codes)
    assert packed.nbytes == codes.size // 2
    assert np.array_equal(unpack_int4(packed, codes.shape), codes)


def test_the_first_code_is_in_the_low_half() -> None:
    assert pack_int4(np.array([[1, -1]], np.int8)).tolist() == [0xF1]
