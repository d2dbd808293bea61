from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.toolkit.small_manifest import small_manifest
from toolkit.engine_memory import engine_memory
from toolkit.errors import FormatError
from toolkit.manifest import Manifest
from toolkit.memory import estimate_memory, kv_cache_bytes, prefill_chunk

MIB = 2**20
# Gemma 3 270M's dims: 15 sliding layers with a window of 512, 3 full ones, one KV head of 256.
SPEC: dict[str, Any] = {
    "vocab_size": 262_144,
    "hidden_size": 640,
    "n_heads": 4,
    "n_kv_heads": 1,
    "head_dim": 256,
    "layer_types": (["sliding"] * 5 + ["full"]) * 3,
    "sliding_window": 512,
}


def manifest(target: str = "litert", **changes: Any) -> Manifest:
    fields: dict[str, Any] = {"spec": SPEC, "memory": {"weights_bytes": 150 * MIB}, "bits_per_weight": 4.5, "target": target}
    return small_manifest(**{**fields, **changes})


def measured(line: dict[int, int], *, first: int | None = None) -> dict[str, Any]:
    """`memory` with a peak at two contexts, and at the first of them a first start's."""
    runs = [(length, False, peak) for length, peak in line.items()]
    if first is not None:
        runs.insert(0, (min(line), True, first))
    facts = [
        {
            "context_length": length,
            "is_first_start": is_first,
            "peak_rss_bytes": peak,
            "anonymous_bytes": peak // 2,
            "mapped_bytes": peak // 2,
            "address_space_bytes": 2 * peak,
        }
        for length, is_first, peak in runs
    ]
    return {"weights_bytes": 150 * MIB, "measured": {"machine": "x86_64", "threads": 2, "runs": facts}}


def test_litert_keeps_every_token_of_every_layer_as_float32() -> None:
    assert kv_cache_bytes(manifest(), 2048, engine=engine_memory("litert")) == 18 * 2 * 256 * 4 * 2048


def test_an_engine_with_a_window_keeps_only_that_of_sliding_layers() -> None:
    mlx = engine_memory("mlx")
    assert kv_cache_bytes(manifest("mlx"), 2048, engine=mlx) == 2 * 256 * 2 * (15 * 512 + 3 * 2048)
    assert kv_cache_bytes(manifest("mlx"), 100, engine=mlx) == 2 * 256 * 2 * 18 * 100
    extra = engine_memory("gguf").window_extra_tokens
    assert kv_cache_bytes(manifest("gguf"), 2048, engine=engine_memory("gguf")) == 2 * 256 * 2 * (15 * (512 + extra) + 3 * 2048)


def test_without_dims_the_manifests_own_figure_counts() -> None:
    plain = manifest(spec={}, memory={"kv_cache_bytes_per_token": 36_864, "weights_bytes": MIB})
    assert estimate_memory(plain, context_length=1000).kv_cache_bytes == 36_864_000


@pytest.mark.parametrize("field", ["full_head_dim", "n_full_kv_heads", "n_kv_shared_layers"])
def test_where_layers_differ_the_manifests_own_sum_counts(field: str) -> None:
    uneven = manifest(spec={**manifest().spec, field: 2}, memory={"kv_cache_bytes_per_token": 1000})
    assert kv_cache_bytes(uneven, 2048, engine=engine_memory("litert")) == 1000 * 2048
    even = manifest(spec={**manifest().spec, field: 0}, memory={"kv_cache_bytes_per_token": 1000})
    assert kv_cache_bytes(even, 2048, engine=engine_memory("litert")) == 18 * 2 * 256 * 4 * 2048


def test_parts_add_up_and_only_the_first_start_packs() -> None:
    first = estimate_memory(manifest(), context_length=512)
    later = estimate_memory(manifest(), context_length=512, is_first_start=False)
    assert first.peak_rss_bytes == sum(first.parts.values())
    assert first.peak_rss_bytes - later.peak_rss_bytes == first.packing_bytes == 262_144 * 640 * 9 // 16
    assert not first.is_calibrated and first.weights_bytes == 150 * MIB


@pytest.mark.parametrize("context_length", [64, 512, 1000, 2048, 4000])
def test_measurements_set_the_line_and_the_kv_cache_stays_arithmetic(context_length: int) -> None:
    line = {512: 400 * MIB, 1024: 440 * MIB}
    estimate = estimate_memory(manifest(memory=measured(line, first=480 * MIB)), context_length=context_length)
    assert estimate.is_calibrated and estimate.packing_bytes == 80 * MIB
    expected = 400 * MIB + (context_length - 512) * 40 * MIB / 512 + 80 * MIB
    assert estimate.peak_rss_bytes == pytest.approx(expected, rel=1e-4)
    assert estimate.kv_cache_bytes == 18 * 2 * 256 * 4 * context_length
    assert estimate.address_space_bytes is not None and estimate.address_space_bytes > estimate.peak_rss_bytes


@pytest.mark.parametrize(
    ("target", "bits", "stored", "peak"),
    [
        ("gguf", 5.74, 96_576_768, 193_585_152),
        ("gguf", 8.5, 143_025_408, 239_964_160),
        ("gguf", 4.5, 75_785_472, 248_463_360),
        ("gguf", 16.0, 269_100_288, 366_804_992),
        ("onnx", 5.74, 96_576_768, 291_155_968),
        ("onnx", 8.5, 143_025_408, 316_788_736),
        ("onnx", 4.5, 75_785_472, 248_135_680),
        ("onnx", 16.0, 269_100_288, 846_950_400),
        ("onnx", 32.0, 538_058_304, 715_419_648),
    ],
)
def test_constants_of_engines_hold_for_what_smollm2_took_at_512_tokens(target: str, bits: float, stored: int, peak: int) -> None:
    """Peaks of SmolLM2 135M in these recipes on x86-64, with onnxruntime-genai 0.18.0 and llama.cpp out of xllamacpp 2026.10.11549."""
    spec = {"vocab_size": 49152, "hidden_size": 576, "n_heads": 9, "n_kv_heads": 3, "head_dim": 64, "layer_types": ["full"] * 30}
    smollm2 = manifest(target, spec=spec, memory={"weights_bytes": stored}, bits_per_weight=bits)
    assert estimate_memory(smollm2, context_length=512).peak_rss_bytes == pytest.approx(peak, rel=0.06)
    wrong = manifest(target, spec=spec, memory={"weights_bytes": 2 * stored}, bits_per_weight=bits)
    assert estimate_memory(wrong, context_length=512).peak_rss_bytes != pytest.approx(peak, rel=0.06), "weights twice as large must show"


def test_a_window_bends_the_line_where_the_engine_keeps_one() -> None:
    mlx = manifest("mlx", memory=measured({256: 300 * MIB, 512: 310 * MIB}))
    straight = 310 * MIB + (2048 - 512) * 10 * MIB / 256
    assert estimate_memory(mlx, context_length=2048).peak_rss_bytes < straight


def test_a_measurement_that_is_ignored_would_be_seen() -> None:
    plain, other = manifest(), manifest(memory=measured({512: 900 * MIB, 1024: 940 * MIB}))
    ratio = estimate_memory(other, context_length=512).peak_rss_bytes / estimate_memory(plain, context_length=512).peak_rss_bytes
    assert ratio > 1.5


def broken(**changes: Any) -> dict[str, Any]:
    memory = measured({512: 400 * MIB, 1024: 440 * MIB})
    memory["measured"]["runs"][0].update(changes)
    return memory


def beside_runs(**changes: Any) -> dict[str, Any]:
    memory = broken()
    memory["measured"].update(changes)
    return memory


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        ({"measured": 3}, "it is no object"),
        ({"measured": {}}, "machine is missing"),
        ({"measured": {"machine": "x86_64", "threads": 2}}, "runs is missing"),
        (beside_runs(machine=5), "machine is 5"),
        (beside_runs(threads=-1), "threads is -1; it must be a whole number, 1 to 65536"),
        (beside_runs(runs=[]), "two contexts"),
        (beside_runs(runs=3), "list of at most 16"),
        (beside_runs(runs=[{}] * 99), "list of at most 16"),
        (beside_runs(runs=[{}]), "runs[0].is_first_start is missing"),
        (beside_runs(runs=[[]]), "runs[0] is no object"),
        (measured({512: 400 * MIB}), "two contexts"),
        (broken(peak_rss_bytes=0), "runs[0].peak_rss_bytes is 0;"),
        (broken(peak_rss_bytes=True), "runs[0].peak_rss_bytes is True;"),
        (broken(context_length=1024), "two contexts"),
        (broken(is_first_start=1), "runs[0].is_first_start is 1; it must be true or false"),
        (broken(mapped_bytes=2**62), "runs[0].mapped_bytes is 4611686018427387904; it must be a whole number, 1 to 1125899906842624"),
    ],
)
def test_figures_that_are_no_measurements_are_refused_by_name(memory: dict[str, Any], why: str) -> None:
    with pytest.raises(FormatError, match="no measurements") as caught:
        estimate_memory(manifest(memory=memory), context_length=512)
    assert why in caught.value.why


ANYTHING = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3))


@given(st.dictionaries(st.sampled_from(list(SPEC)), ANYTHING), ANYTHING, st.integers(1, 2**27))
def test_whatever_a_manifest_says_the_estimate_is_a_size_or_refused(spec: dict[str, Any], memory: Any, context_length: int) -> None:
    strange = manifest(spec=spec, memory={"weights_bytes": memory, "measured": memory if isinstance(memory, list) else None})
    try:
        assert estimate_memory(strange, context_length=context_length).peak_rss_bytes > 0
    except FormatError:
        pass


def test_the_prefill_chunk_is_the_longest_the_bundle_was_built_for() -> None:
    assert prefill_chunk(manifest(recipe={"as_written": {"prefill_lengths": [16, 256]}})) == 256
    for recipe in ({}, {"as_written": {"prefill_lengths": ["x"]}}, {"as_written": 3}):
        assert prefill_chunk(manifest(recipe=recipe)) == 128
