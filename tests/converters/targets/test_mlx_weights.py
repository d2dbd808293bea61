"""The weight files beside MLX's own: the arrays mx.quantize makes, the files mlx_lm opens, the codes a GGUF file has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.recipe import load_recipe
from converters.targets import mlx_weights
from converters.targets.mlx import TARGET
from converters.targets.mlx_run import MlxModel
from converters.targets.mlx_storage import plan_storage
from converters.targets.mlx_weights import INDEX_NAME, WEIGHTS_NAME, stored_bytes, write_weights
from tests.converters.targets.mlx_models import TOKEN_IDS, gguf_checkpoint, hf_checkpoint, written
from toolkit.errors import FormatError, ToolkitError

mx = pytest.importorskip("mlx.core", reason="pip install 'ondevice-toolkit[mlx]'")
KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def arrays(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in folder.glob("model*.safetensors"):
        found |= mx.load(str(path))
    return found


def dequantized(found: dict[str, Any], path: str, bits: int, group_size: int) -> np.ndarray:
    scales, biases = (found[f"{path}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
    return np.array(mx.dequantize(found[f"{path}.weight"], scales, biases, group_size=group_size, bits=bits))


@pytest.mark.parametrize(("recipe", "bits", "group_size"), [("int8", 8, 64), ("int4-g32", 4, 32)])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_every_matrix_is_what_mx_quantize_makes_of_it(name: str, recipe: str, bits: int, group_size: int, tmp_path: Path) -> None:
    checkpoint = hf_checkpoint(tmp_path, name)
    found = arrays(written(checkpoint, recipe, tmp_path / "out"))
    dtype = mx.bfloat16 if name == "gemma3" else mx.float16
    for tensor in checkpoint.tensors.names():
        weight = mx.array(checkpoint.tensors.load(tensor))
        if weight.ndim == 1:
            assert mx.array_equal(found.pop(tensor), weight.astype(dtype))
            continue
        path = tensor.removesuffix(".weight")
        codes, scales, biases = mx.quantize(weight, group_size=group_size, bits=bits)
        assert mx.array_equal(found.pop(f"{path}.weight"), codes)
        assert mx.array_equal(found.pop(f"{path}.scales"), scales.astype(dtype))
        assert mx.array_equal(found.pop(f"{path}.biases"), biases.astype(dtype))
    assert not found


def test_floats_are_cast_and_nothing_else(tmp_path: Path) -> None:
    checkpoint = hf_checkpoint(tmp_path, "qwen2")
    for recipe, dtype in (("fp32", mx.float32), ("fp16", mx.float16)):
        found = arrays(written(checkpoint, recipe, tmp_path / recipe))
        assert set(found) == set(checkpoint.tensors.names())
        for name, array in found.items():
            assert array.dtype == dtype and mx.array_equal(array, mx.array(checkpoint.tensors.load(name)).astype(dtype))


def test_a_file_is_cut_where_the_next_tensor_would_pass_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = hf_checkpoint(tmp_path, "llama")
    whole = arrays(written(checkpoint, "int4-g32", tmp_path / "whole"))
    monkeypatch.setattr(mlx_weights, "MAX_SHARD_BYTES", 30_000)
    folder = written(checkpoint, "int4-g32", tmp_path / "cut")
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors" and len(files) > 3
    assert all((folder / file).stat().st_size < 30_000 + 5000 for file in files)
    index = json.loads((folder / INDEX_NAME).read_text())
    for name, file in index["weight_map"].items():
        assert mx.array_equal(mx.load(str(folder / file))[name], whole[name])
    assert set(index["weight_map"]) == set(whole)
    assert index["metadata"] == {
        "total_size": stored_bytes(folder),
        "total_parameters": checkpoint.spec.n_parameters,
    }
    logits = [next(iter(MlxModel(place).score(TOKEN_IDS))) for place in (folder, tmp_path / "whole" / "model")]
    np.testing.assert_array_equal(*logits)


def test_one_file_is_called_as_every_tool_expects(tmp_path: Path) -> None:
    folder = written(hf_checkpoint(tmp_path, "llama"), "fp16", tmp_path / "out")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", WEIGHTS_NAME, INDEX_NAME]
    assert json.loads((folder / INDEX_NAME).read_text())["weight_map"]["model.norm.weight"] == WEIGHTS_NAME


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("kind", KINDS)
def test_kept_codes_mean_the_values_of_the_source_exactly(kind: str, family: str, tmp_path: Path) -> None:
    checkpoint = gguf_checkpoint(tmp_path, family, kind)
    plan = plan_storage(checkpoint, load_recipe("keep"))
    found = arrays(written(checkpoint, "keep", tmp_path / "out"))
    for name, storage in plan.items():
        if storage.bits is None:
            continue
        values = dequantized(found, name.removesuffix(".weight"), storage.bits, 32)
        assert int((values != checkpoint.tensors.load(name)).sum()) == 0, name


def test_a_changed_scale_or_code_would_be_seen(tmp_path: Path) -> None:
    """The twin of the comparison above."""
    checkpoint = gguf_checkpoint(tmp_path, "llama", "Q4_1")
    found = arrays(written(checkpoint, "keep", tmp_path / "out"))
    path = "model.layers.0.self_attn.q_proj"
    want = checkpoint.tensors.load(f"{path}.weight")
    for part, change in (("scales", lambda a: a.astype(mx.bfloat16)), ("biases", lambda a: -a), ("weight", lambda a: a ^ 1)):
        changed = found | {f"{path}.{part}": change(found[f"{path}.{part}"])}
        assert int((dequantized(changed, path, 4, 32) != want).sum()) > 0, part


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_kept_codes_are_packed_as_mlx_packs_that_gguf_file(kind: str, tmp_path: Path) -> None:
    checkpoint = gguf_checkpoint(tmp_path, "qwen3", kind)  # a family whose rows GGUF does not permute
    found = arrays(written(checkpoint, "keep", tmp_path / "out"))
    theirs = mx.load(str(tmp_path / "tiny.gguf"))
    for ours, name in (("model.layers.1.mlp.down_proj", "blk.1.ffn_down"), ("model.layers.3.self_attn.q_proj", "blk.3.attn_q")):
        for part in ("weight", "scales", "biases"):
            assert mx.array_equal(found[f"{ours}.{part}"], theirs[f"{name}.{part}"]), (name, part)


def test_scales_that_16_bits_do_not_hold_are_not_rounded(tmp_path: Path) -> None:
    checkpoint = gguf_checkpoint(tmp_path, "llama", "Q4_1")

    class Finer:
        def __getattr__(self, name: str) -> Any:
            return getattr(checkpoint.tensors, name)

        def stored(self, name: str) -> Any:
            stored = checkpoint.tensors.stored(name)
            return stored and replace(stored, scales=stored.scales * np.float32(1 + 2**-20))

    broken = replace(checkpoint, tensors=Finer())  # type: ignore[arg-type]
    with pytest.raises(ToolkitError, match=r"embed_tokens\.weight cannot be kept as it is") as raised:
        written(broken, "keep", tmp_path / "out")
    assert "are none of float16's" in raised.value.why


def test_a_source_that_ends_early_leaves_no_file_that_looks_whole(tmp_path: Path) -> None:
    checkpoint = hf_checkpoint(tmp_path, "llama")

    class Short:
        def __getattr__(self, name: str) -> Any:
            return getattr(checkpoint.tensors, name)

        def blocks(self, name: str) -> Iterator[np.ndarray]:
            yield checkpoint.tensors.load(name)[:-1]

    with pytest.raises(FormatError, match="fewer rows than its shape says"):
        write_weights(tmp_path, Short(), plan_storage(checkpoint, load_recipe("int8")))  # type: ignore[arg-type]


@pytest.mark.real
def test_smollm2_s_own_codes_go_over_without_one_changed_value(smollm2_gguf: Path, tmp_path: Path) -> None:
    from converters.read.gguf import read_gguf

    checkpoint = read_gguf(smollm2_gguf)
    found = arrays(written(checkpoint, "keep", tmp_path / "out"))
    n_values = n_changed = 0
    for name, storage in plan_storage(checkpoint, load_recipe("keep")).items():
        if storage.bits is not None:
            changed = dequantized(found, name.removesuffix(".weight"), storage.bits, 32) != checkpoint.tensors.load(name)
            n_values, n_changed = n_values + changed.size, n_changed + int(changed.sum())
    assert (n_values, n_changed) == (134_479_872, 0)
    assert 5.8 < TARGET.promise(checkpoint, load_recipe("keep")) < 5.9


@pytest.mark.real
def test_smollm2_s_kept_codes_are_those_mlx_reads_from_the_file(smollm2_gguf: Path, tmp_path: Path) -> None:
    from converters.architectures.llama import gguf_names, unpermute_rows
    from converters.read.gguf import read_gguf

    checkpoint = read_gguf(smollm2_gguf)
    found, theirs = arrays(written(checkpoint, "keep", tmp_path / "out")), mx.load(str(smollm2_gguf))
    heads = {"attn_q": checkpoint.spec.n_heads, "attn_k": checkpoint.spec.n_kv_heads}
    n_equal = 0
    for gguf_name, name in gguf_names(checkpoint.spec).items():
        path, stem = name.removesuffix(".weight"), gguf_name.removesuffix(".weight")
        if f"{path}.scales" not in found:
            continue
        for part in ("weight", "scales", "biases"):
            want = np.array(theirs[f"{stem}.{part}"])
            if (n_heads := heads.get(stem.rpartition(".")[2])) is not None:
                want = unpermute_rows(want, n_heads)
            assert np.array_equal(np.array(found[f"{path}.{part}"]), want), (name, part)
        n_equal += 1
    assert n_equal == 211
