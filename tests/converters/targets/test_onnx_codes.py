"""Codes for onnxruntime's quantized operators, against a slow loop and against what a source means by its own blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converters.read.gguf_blocks import unpack_blocks
from converters.recipe import load_recipe
from converters.rule import Activations, Algorithm, Granularity, Rule, TensorClass
from converters.stored_blocks import BLOCK_BITS, StoredBlocks
from converters.targets.onnx_codes import Codes, kept, middle, pack_codes, pack_zero_points, quantize_rows, refusal, stored_bits

SHAPE = (5, 96)


def rule(bits: int, *, symmetric: bool = True, group_size: int | None = 32) -> Rule:
    granularity = Granularity.BLOCKWISE if group_size else Granularity.CHANNEL
    return Rule(bits, Algorithm.ROUND, granularity, group_size, symmetric, Activations.INT8_DYNAMIC)


@pytest.fixture
def weight() -> np.ndarray:
    """(5, 96): a group of zeros, one of one sign, one whose largest weight is an outlier, one too small for a float16 scale."""
    weight = np.random.default_rng(20261130).standard_normal(SHAPE).astype(np.float32)
    weight[0, :32] = 0
    weight[1, :32] = np.abs(weight[1, :32])
    weight[2, 40] = -500
    weight[3, :32] *= 1e-9
    return weight


def slow(weight: np.ndarray, bits: int, symmetric: bool) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales, one group at a time, in plain Python."""
    codes, scales = np.zeros(weight.shape, int), np.zeros((weight.shape[0], weight.shape[1] // 32))
    for row in range(weight.shape[0]):
        for group in range(scales.shape[1]):
            values = [float(value) for value in weight[row, 32 * group : 32 * group + 32]]
            if symmetric:
                step, zero = max(values, key=abs) / -(2 ** (bits - 1)), 2 ** (bits - 1)
            else:
                low, high = min(*values, 0), max(*values, 0)
                step = (high - low) / (2**bits - 1)
                zero = 0
            step = float(np.float16(step))
            if not symmetric and step:
                zero = min(max(round(-low / step), 0), 2**bits - 1)
            scales[row, group] = step
            for i, value in enumerate(values):
                code = zero + (round(value / step) if step else 0)
                codes[row, 32 * group + i] = min(max(code, 0), 2**bits - 1)
    return codes, scales


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_codes_match_the_slow_loop(weight: np.ndarray, bits: int, symmetric: bool) -> None:
    got = quantize_rows(weight, rule(bits, symmetric=symmetric))
    codes, scales = slow(weight, bits, symmetric)
    np.testing.assert_array_equal(got.scales, scales)
    assert np.abs(got.codes - codes).max() <= 1 and np.mean(got.codes != codes) < 0.02, "ties may fall apart between float32 and float64"
    mutant, _ = slow(np.roll(weight, 32, axis=1), bits, symmetric)
    assert np.mean(got.codes != mutant) > 0.5


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_error_is_within_the_stated_bound(weight: np.ndarray, bits: int, symmetric: bool) -> None:
    codes = quantize_rows(weight, rule(bits, symmetric=symmetric))
    error = np.abs(weight - codes.dequantized()).reshape(5, 3, 32)
    bound = np.abs(codes.scales)[..., None] * (1 + 1e-3) + 1e-7
    assert (error <= bound).all()
    assert (error[1:3] > 0.45 * np.abs(codes.scales[1:3])[..., None]).any(), "rounding of this weight costs something"
    assert (codes.dequantized()[0, :32] == 0).all() and (codes.dequantized()[3, :32] == 0).all()


@given(st.lists(st.floats(-60000, 60000, width=32), min_size=32, max_size=32), st.sampled_from([4, 8]), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_finite_group_keeps_the_bound(values: list[float], bits: int, symmetric: bool) -> None:
    weight = np.array([values], np.float32)
    codes = quantize_rows(weight, rule(bits, symmetric=symmetric))
    assert codes.codes.max() < 2**bits
    least_float16 = 6e-8
    bound = np.abs(codes.scales[0, 0]) * (1 + 2.0**-10 * 2**bits) + least_float16 * 2**bits
    assert (np.abs(weight - codes.dequantized()) <= bound).all()


def test_a_scale_beyond_float16_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond float16"):
        quantize_rows(np.full((1, 32), 1e6, np.float32), rule(4))


def test_a_group_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="groups of 64 do not divide in_features 96"):
        quantize_rows(np.ones((1, 96), np.float32), rule(4, group_size=64))


def unpacked(codes: Codes) -> np.ndarray:
    packed = pack_codes(codes)
    if codes.bits == 4:
        packed = np.stack([packed & 15, packed >> 4], axis=-1)
    return packed.reshape(codes.codes.shape)


@pytest.mark.parametrize("bits", [4, 8])
def test_packing_loses_nothing_and_puts_the_first_code_low(weight: np.ndarray, bits: int) -> None:
    codes = quantize_rows(weight, rule(bits, symmetric=False))
    np.testing.assert_array_equal(unpacked(codes), codes.codes)
    zero_points = pack_zero_points(codes)
    assert zero_points is not None and codes.zero_points is not None
    assert zero_points.shape == (5, 2 if bits == 4 else 3), "three 4-bit zero points take two bytes"
    assert (zero_points[:, 0] & (15 if bits == 4 else 255) == codes.zero_points[:, 0]).all()
    swapped = replace(codes, codes=codes.codes.reshape(5, -1, 2)[..., ::-1].reshape(5, -1))
    assert not np.array_equal(unpacked(swapped), codes.codes)


def blocks(kind: str) -> StoredBlocks:
    sizes = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q4_K": 144}
    rng = np.random.default_rng(list(kind.encode()))
    n_blocks = 6 * (8 if kind != "Q4_K" else 1)
    raw = rng.integers(0, 256, (n_blocks, sizes[kind]), np.uint8)
    halves = 2 if kind in ("Q4_1", "Q5_1", "Q4_K") else 1
    raw[:, : 2 * halves] = rng.uniform(0.001, 0.1, (n_blocks, halves)).astype("<f2").view(np.uint8)
    parts = unpack_blocks(raw.tobytes(), kind, sizes[kind])
    return StoredBlocks(kind, BLOCK_BITS[kind], 32, parts.codes.reshape(6, -1), parts.scales.reshape(6, -1), parts.offsets.reshape(6, -1))


@pytest.mark.parametrize("kind", BLOCK_BITS)
def test_a_sources_own_blocks_are_kept_value_for_value(kind: str) -> None:
    source = blocks(kind)
    codes = kept(source)
    # A symmetric kind is scale * (code - middle) here and scale * code + offset there: one rounding less.
    np.testing.assert_allclose(codes.dequantized(), source.dequantized(), rtol=0, atol=2e-6 * float(np.abs(source.scales).max()) * 256)
    assert (codes.offsets is None) == kind.endswith("_0")
    assert codes.bits == (4 if source.bits == 4 else 8)
    wrong = replace(codes, codes=np.roll(codes.codes, 1, axis=1))
    assert np.abs(wrong.dequantized() - source.dequantized()).max() > 1e-3


@pytest.mark.parametrize("kind", BLOCK_BITS)
def test_promised_bits_of_kept_blocks_are_those_of_their_parts(kind: str) -> None:
    codes = kept(blocks(kind))
    half = 32 if kind == "Q4_K" else 16
    parts = 8 * pack_codes(codes).nbytes + half * codes.scales.size * (1 if codes.offsets is None else 2)
    assert stored_bits(load_recipe("keep").rules[TensorClass.LINEAR], kind, codes.codes.shape) == parts


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_promised_bits_are_those_of_the_parts(weight: np.ndarray, bits: int, symmetric: bool) -> None:
    codes = quantize_rows(weight, rule(bits, symmetric=symmetric))
    zero_points = pack_zero_points(codes)
    parts = 8 * pack_codes(codes).nbytes + 16 * codes.scales.size + (0 if zero_points is None else 8 * zero_points.nbytes)
    assert stored_bits(rule(bits, symmetric=symmetric), None, SHAPE) == parts


def test_keeping_what_has_no_codes_is_refused() -> None:
    keep = load_recipe("keep").rules[TensorClass.LINEAR]
    for kind, said in (("Q6_K", "stores it as Q6_K"), (None, "stores it as floats")):
        with pytest.raises(ValueError, match=said):
            stored_bits(keep, kind, SHAPE)


@pytest.mark.parametrize("recipe", ["fp32", "fp16", "int8", "int4-g32", "keep"])
def test_recipes_that_come_with_the_project_are_carried_out(recipe: str) -> None:
    assert all(refusal(each) == "" for each in load_recipe(recipe).all_rules())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bits": 3}, "3-bit weights"),
        ({"algorithm": Algorithm.HADAMARD}, "no rotation operator"),
        ({"algorithm": Algorithm.GPTQ}, "algorithm gptq is not there"),
        ({"granularity": Granularity.TENSOR, "group_size": None}, "one scale for a whole tensor"),
        ({"int8_rows": 16}, "int8_rows"),
    ],
)
def test_other_rules_are_refused_by_name(changes: dict[str, object], said: str) -> None:
    assert said in refusal(replace(rule(4), **changes))  # type: ignore[arg-type]


def test_the_middle_code_is_what_the_operators_subtract() -> None:
    assert (middle(4), middle(8)) == (8, 128)
    for bits in (4, 8):
        zero = quantize_rows(np.zeros((1, 32), np.float32), rule(bits))
        assert (zero.codes == middle(bits)).all() and zero.base == 0 and zero.zero_points is None
