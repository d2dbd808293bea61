"""The lazily drawn checkpoint, converted small, and how the two MLX and GGUF benchmarks judge their figures."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gguf_reading, lazy_checkpoint, mlx_conversion
from benchmarks.lazy_checkpoint import LazyTensors, convert_lazily, lazy_spec
from benchmarks.process_tree import TreeRun
from toolkit import Bundle
from toolkit.cache import CACHE_VARIABLE

pytest.importorskip("gguf", reason="needs the convert extra")
SMALL = replace(lazy_spec(2), hidden_size=64, intermediate_size=128, n_heads=2, n_kv_heads=1, head_dim=32, vocab_size=300)


def test_the_large_model_has_two_billion_parameters() -> None:
    assert 2.0e9 < lazy_spec().n_parameters < 2.2e9


def test_weights_are_drawn_block_by_block_and_alike_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_checkpoint, "BLOCK_WEIGHTS", 64 * 7)
    tensors = LazyTensors(SMALL)
    blocks = list(tensors.blocks("model.embed_tokens.weight"))
    assert [len(block) for block in blocks] == [7] * 42 + [6]
    np.testing.assert_array_equal(np.concatenate(blocks), tensors.load("model.embed_tokens.weight"))
    assert not np.array_equal(tensors.load("model.norm.weight"), tensors.load("model.layers.0.input_layernorm.weight"))


def test_a_checkpoint_that_is_no_file_becomes_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    result = convert_lazily(lazy_checkpoint.lazy_checkpoint(spec=SMALL), tmp_path / "out")
    assert result.exit_code == 0
    manifest = Bundle.open(tmp_path / "out" / "lazy-mlx-int4-g32").manifest
    assert 5.0 <= manifest.bits_per_weight < 5.1 and manifest.fidelity is None


def cost(wall_s: float, peak_rss_bytes: int) -> TreeRun:
    return TreeRun(wall_s=wall_s, peak_rss_bytes=peak_rss_bytes, peak_anonymous_bytes=1, largest_process_rss_bytes=1)


def arguments(model: str, layers: int = lazy_checkpoint.N_LAYERS) -> argparse.Namespace:
    return argparse.Namespace(model=model, rounds=2, without=[], layers=layers, scratch=None, accept_license=None)


@pytest.mark.parametrize(
    ("model", "layers", "missed"),
    [
        ("smollm2-135m-instruct", lazy_checkpoint.N_LAYERS, {mlx_conversion.OURS, mlx_conversion.LARGE}),
        ("smollm2-135m-instruct", 1, {mlx_conversion.OURS}),
        ("gemma-3-270m", lazy_checkpoint.N_LAYERS, {mlx_conversion.LARGE}),
    ],
)
def test_mlx_targets_are_judged_on_convert_alone_and_at_their_own_size(
    model: str, layers: int, missed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = {mlx_conversion.BARE: cost(8.0, 500_000_000), mlx_conversion.OURS: cost(4.0, 400_000_000)}
    costs[mlx_conversion.LARGE] = cost(60.0, 2_300_000_000)

    def run_side(side: str, args: argparse.Namespace, hf_dir: Path, folder: Path) -> TreeRun:
        folder.mkdir()
        return costs[side]

    monkeypatch.setattr(mlx_conversion, "fetch", lambda model, accept_license: None)
    monkeypatch.setattr(mlx_conversion, "run_side", run_side)
    monkeypatch.setattr(mlx_conversion, "run_module", lambda command, folder, what: cost(1.0, 1))
    monkeypatch.setattr(mlx_conversion, "find_spec", lambda name: object())
    report = mlx_conversion.measure(arguments(model, layers))
    assert {(figure.subject, figure.name) for figure in report.missed} == {(side, "peak_rss_bytes") for side in missed}
    figures = {(figure.subject, figure.name): figure for figure in report.figures}
    assert figures["convert / mlx_lm.convert", "wall_ratio"].values == (0.5, 0.5)


def test_gguf_targets_are_judged_on_write_hf_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gemma.gguf").write_bytes(b"GGUF")
    costs = {gguf_reading.PEER: cost(46.0, 3_300_000_000), gguf_reading.OURS: cost(13.0, 300_000_000)}
    monkeypatch.setattr(gguf_reading, "fetch", lambda model, accept_license: argparse.Namespace(path=tmp_path / "gemma.gguf"))
    monkeypatch.setattr(gguf_reading, "run_side", lambda side, gguf, folder: costs[side])
    report = gguf_reading.measure(arguments("gemma-3-270m"))
    assert [(figure.subject, figure.name) for figure in report.missed] == [(gguf_reading.OURS, "wall_s")]


def test_write_hf_of_a_small_file_is_really_run(tmp_path: Path) -> None:
    from tests.converters.tiny_checkpoints import tiny_model, write_gguf

    measured = gguf_reading.run_side(gguf_reading.OURS, write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf"), tmp_path / "out")
    assert measured.peak_rss_bytes > 0 and (tmp_path / "out" / "model.safetensors").is_file()
