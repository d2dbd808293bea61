"""Our affine quantization beside MLX's own: equal bit for bit, on the groups that break quantizers too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converters.quantize import affine
from converters.quantize.affine import BITS, GROUP_SIZES, Affine, dequantize_affine, pack_codes, quantize_affine, unpack_codes

mx = pytest.importorskip("mlx.core", reason="pip install 'ondevice-toolkit[mlx]'")
DTYPES = ("float32", "float16", "bfloat16")


def hard_weights() -> np.ndarray:
    """(16, 512) float32: normal rows, and rows with zeros, outliers, constants, one sign only, and vanishing values."""
    weights = np.random.default_rng(20261130).standard_normal((16, 512)).astype(np.float32)
    weights[0, :128] = 0.0
    weights[1, 5] = 1000.0
    weights[2, :128] = 3.5
    weights[3, :128] = -1e-9
    weights[4], weights[5] = np.abs(weights[4]), -np.abs(weights[5])
    weights[6] *= 1e-6
    weights[7, ::2] = 0.0
    weights[8, :128] = -2.0
    weights[9, :256] = np.tile([1.0, -1.0], 128)  # both ends equally far from zero
    return weights


def as_float32(array: object) -> np.ndarray:
    return np.array(array.astype(mx.float32))  # type: ignore[attr-defined]


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    return as_float32(mx.array(values).astype(getattr(mx, dtype)))


def mlx_quantize(weights: np.ndarray, dtype: str, bits: int, group_size: int) -> Affine:
    packed, scales, biases = mx.quantize(mx.array(weights).astype(getattr(mx, dtype)), group_size=group_size, bits=bits)
    return Affine(np.array(packed), as_float32(scales), as_float32(biases))


def is_equal(ours: Affine, theirs: Affine, dtype: str) -> bool:
    return (
        np.array_equal(ours.packed, theirs.packed)
        and np.array_equal(rounded(ours.scales, dtype), theirs.scales)
        and np.array_equal(rounded(ours.biases, dtype), theirs.biases)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("bits", BITS)
def test_codes_scales_and_biases_are_those_of_mlx(bits: int, group_size: int, dtype: str) -> None:
    theirs = mlx_quantize(hard_weights(), dtype, bits, group_size)
    assert is_equal(quantize_affine(rounded(hard_weights(), dtype), bits=bits, group_size=group_size), theirs, dtype)


@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-30, 30), bits=st.sampled_from(BITS), group_size=st.sampled_from(GROUP_SIZES))
def test_random_weights_of_any_magnitude_are_quantized_as_mlx_does(seed: int, exponent: int, bits: int, group_size: int) -> None:
    weights = (np.random.default_rng(seed).standard_normal((4, 256)) * 2.0**exponent).astype(np.float32)
    ours = quantize_affine(weights, bits=bits, group_size=group_size)
    assert is_equal(ours, mlx_quantize(weights, "float32", bits, group_size), "float32")


def test_what_is_larger_than_one_chunk_is_quantized_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantize_affine(hard_weights(), bits=4, group_size=32)
    monkeypatch.setattr(affine, "CHUNK_WEIGHTS", 5 * 32)  # 256 groups are no multiple of 5
    for first, second in zip(whole, quantize_affine(hard_weights(), bits=4, group_size=32), strict=True):
        np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(pack_codes(unpack_codes(whole.packed, 4), 4), whole.packed)


MUTANTS = {
    "floor for round": lambda columns, out: np.floor(columns, out=out),
    "half away from zero": lambda columns, out: np.copyto(out, np.floor(columns + 0.5)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_another_rounding_is_seen(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the comparison: a quantizer that rounds otherwise must differ from MLX somewhere."""
    halves = np.arange(-31, 33, dtype=np.float32).reshape(1, 64) / 2  # at 6 bits and a whole step, every other one is a tie
    halves[0, 0] = -32.0
    rint = np.rint
    monkeypatch.setattr(np, "rint", lambda values, out=None: rint(values) if out is None else MUTANTS[mutant](values, out))
    ours = quantize_affine(halves, bits=6, group_size=64)
    monkeypatch.undo()
    assert not is_equal(ours, mlx_quantize(halves, "float32", 6, 64), "float32")


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_dequantized_weights_are_those_of_mlx(bits: int, group_size: int) -> None:
    ours = quantize_affine(hard_weights(), bits=bits, group_size=group_size)
    theirs = mx.dequantize(*map(mx.array, ours), group_size=group_size, bits=bits)
    np.testing.assert_allclose(dequantize_affine(ours, bits=bits), np.array(theirs), rtol=1e-6, atol=1e-6)
    assert np.abs(dequantize_affine(ours._replace(scales=1.02 * ours.scales), bits=bits) - np.array(theirs)).max() > 1e-3


@pytest.mark.parametrize("bits", BITS)
def test_no_weight_is_further_from_its_value_than_a_step(bits: int) -> None:
    quantized = quantize_affine(hard_weights(), bits=bits, group_size=32)
    errors = np.abs(dequantize_affine(quantized, bits=bits) - hard_weights()).reshape(16, 16, 32)
    assert (errors <= np.abs(quantized.scales)[..., None] * (1 + 1e-4)).all()
    assert errors.max() > 0


def test_more_bits_never_hurt() -> None:
    restored = {bits: dequantize_affine(quantize_affine(hard_weights(), bits=bits, group_size=64), bits=bits) for bits in BITS}
    errors = [np.mean((restored[bits] - hard_weights()) ** 2) for bits in BITS]
    assert errors == sorted(errors, reverse=True) and errors[0] > 0


@given(data=st.data(), bits=st.sampled_from(BITS), n_rows=st.integers(1, 5), n_words=st.integers(1, 4))
def test_packed_codes_are_unpacked_to_themselves(data: st.DataObject, bits: int, n_rows: int, n_words: int) -> None:
    values = data.draw(st.binary(min_size=32 * n_rows * n_words, max_size=32 * n_rows * n_words))
    codes = (np.frombuffer(values, np.uint8) & np.uint8(2**bits - 1)).reshape(n_rows, 32 * n_words)
    packed = pack_codes(codes, bits)
    assert packed.shape == (n_rows, n_words * bits)
    np.testing.assert_array_equal(unpack_codes(packed, bits), codes)


@pytest.mark.parametrize("bits", BITS)
def test_packed_codes_are_a_little_endian_stream_of_bits(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 2**bits, (3, 64)).astype(np.uint8)
    stream = sum(int(code) << (bits * index) for index, code in enumerate(codes[1]))
    assert pack_codes(codes, bits)[1].tobytes() == stream.to_bytes(64 * bits // 8, "little")


@pytest.mark.parametrize(
    ("bits", "group_size", "width", "why"),
    [
        (7, 32, 64, "7 bits: affine codes have 2, 3, 4, 5, 6, 8"),
        (4, 48, 96, "group_size 48: affine groups have 32, 64, 128 weights"),
        (4, 64, 96, "group_size 64 does not divide in_features 96"),
    ],
)
def test_what_mlx_has_no_kernel_for_is_refused_with_the_numbers(bits: int, group_size: int, width: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        quantize_affine(np.ones((2, width), np.float32), bits=bits, group_size=group_size)


def test_a_code_that_needs_more_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="code 16 does not fit in 4 bits"):
        pack_codes(np.full((1, 32), 16, np.uint8), 4)
