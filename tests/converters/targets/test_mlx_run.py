"""The scorer beside MLX's own kernels, and where MLX is not installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.targets.mlx import TARGET
from converters.targets.mlx_run import MlxModel, require_mlx
from tests.converters.targets.mlx_models import TOKEN_IDS, gguf_checkpoint, hf_checkpoint, wide_model, written
from tests.converters.tiny_checkpoints import logits
from toolkit.errors import BackendUnavailableError, FormatError

pytest.importorskip("mlx_lm", reason="pip install 'ondevice-toolkit[mlx]'")


def scored(folder: Path, token_ids: list[int] = TOKEN_IDS, *, is_native: bool = False) -> np.ndarray:
    return np.concatenate(list(MlxModel(folder, is_native=is_native).score(token_ids)))


@pytest.mark.parametrize("name", ["llama-bias", "qwen2", "gemma3", "gemma2"])
def test_in_float32_the_scorer_answers_as_mlx_and_transformers_do(name: str, tmp_path: Path) -> None:
    changes = {"sliding_window": 24} if name == "gemma2" else {}
    folder = written(hf_checkpoint(tmp_path, name, **changes), "fp32", tmp_path / "out")
    ours = scored(folder)
    np.testing.assert_allclose(ours, scored(folder, is_native=True), atol=1e-4)
    np.testing.assert_allclose(ours, logits(wide_model(name, **changes))[0], atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("recipe", ["int8", "int4-g32"])
def test_mlx_s_own_quantized_kernels_answer_the_same_within_16_bit_sums(recipe: str, name: str, tmp_path: Path) -> None:
    """24 tokens of the true quantized path. The twin: a bundle of another recipe is further off."""
    checkpoint = hf_checkpoint(tmp_path, name)
    folder = written(checkpoint, recipe, tmp_path / "out")
    ours = scored(folder)
    error = np.abs(ours - scored(folder, is_native=True)).max() / np.abs(ours).max()
    assert error < (0.08 if name == "gemma3" else 0.02), "bfloat16 has 8 bits, float16 has 11"
    other = scored(written(checkpoint, {"int8": "int4-g32", "int4-g32": "int8"}[recipe], tmp_path / "other"), is_native=True)
    assert np.abs(ours - other).max() / np.abs(ours).max() > error


def test_kept_codes_answer_as_the_checkpoint_they_come_from(tmp_path: Path) -> None:
    checkpoint = gguf_checkpoint(tmp_path, "llama", "Q4_1")
    kept = scored(written(checkpoint, "keep", tmp_path / "keep"))
    reference = scored(written(checkpoint, "fp32", tmp_path / "fp32"))
    again = scored(written(checkpoint, "int4-g32", tmp_path / "int4"))
    error = np.abs(kept - reference).max()
    assert error < 5e-3 and error < np.abs(again - reference).max() / 10, "quantizing a second time must show"


def test_a_window_longer_than_a_chunk_is_answered_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(hf_checkpoint(tmp_path, "gemma3"), "fp32", tmp_path / "out")
    whole = scored(folder)
    monkeypatch.setattr("converters.targets.mlx_run.CHUNK", 7)
    blocks = list(MlxModel(folder).score(TOKEN_IDS))
    assert [len(block) for block in blocks] == [7, 7, 7, 3]
    np.testing.assert_allclose(np.concatenate(blocks), whole, atol=1e-4)


def test_greedy_tokens_are_counted_up_to_the_first_other_one(tmp_path: Path) -> None:
    import torch

    model = wide_model("llama")
    folder = written(hf_checkpoint(tmp_path, "llama"), "fp32", tmp_path / "out")
    tokens = torch.tensor([TOKEN_IDS[:8]])
    with torch.no_grad():
        for _ in range(12):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], dim=1)
    expected = tokens[0, 8:].tolist()
    scorer = TARGET.open_scorer(folder)
    assert scorer.count_greedy_equal(TOKEN_IDS[:8], expected) == 12
    wrong = [*expected[:5], (expected[5] + 1) % 320, *expected[6:]]
    assert scorer.count_greedy_equal(TOKEN_IDS[:8], wrong) == 5


def test_a_folder_mlx_lm_refuses_is_an_error_with_its_reason(tmp_path: Path) -> None:
    folder = written(hf_checkpoint(tmp_path, "llama"), "int8", tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 96}))
    with pytest.raises(FormatError, match="mlx_lm cannot open model") as raised:
        MlxModel(folder)
    assert "ValueError" in raised.value.why


def test_without_mlx_the_error_holds_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def without_mlx(name: str, *rest: Any) -> Any:
        return None if name in ("mlx", "mlx_lm") else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without_mlx)
    with pytest.raises(BackendUnavailableError) as raised:
        require_mlx("an MLX bundle cannot be run here")
    assert (raised.value.why, raised.value.fix) == ("mlx and mlx_lm are not installed", "pip install 'ondevice-toolkit[mlx]'")
    assert raised.value.exit_code == 5


def test_writing_a_bundle_imports_neither_mlx_nor_transformers(tmp_path: Path) -> None:
    import subprocess

    checkpoint = hf_checkpoint(tmp_path, "llama")
    options = ["--to", "mlx", "--recipe", "int4-g32", "--context", "64", "--no-verify", "--out", str(tmp_path / "bundles")]
    code = (
        "import sys; from converters.cli import main; "
        f"code = main({[checkpoint.source.uri, *options]!r}); "
        "heavy = {'mlx', 'mlx_lm', 'transformers', 'torch'} & set(sys.modules); assert code == 0 and not heavy, (code, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
