"""GPTQ and AWQ checkpoints mean what a slow reading of their words, one code at a time, says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converters.read import read_checkpoint
from converters.read.inspect import inspect_source
from converters.read.packed_int4 import packing_of
from tests.converters.tiny_checkpoints import load_hf, logits, save_hf, tiny_model
from toolkit.errors import FormatError, ToolkitError, UnsupportedModelError

GROUP = 16
SIZES = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8}
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
METHODS = ("gptq", "gptq_v2", "gptq desc_act", "awq")


def pack(weight: np.ndarray, method: str, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A matrix (out, in) as a method stores it, and what that means: word by word, in plain Python."""
    rows, columns = weight.shape
    n_groups = columns // GROUP
    group = np.arange(columns) // GROUP
    if method == "gptq desc_act":
        group = rng.permutation(group)
    scales = (0.01 + 0.05 * rng.random((n_groups, rows))).astype(np.float16)
    zeros = rng.integers(1, 16, (n_groups, rows))
    codes = np.clip(np.rint(weight.T / scales[group]) + zeros[group], 0, 15).astype(int)  # (in, out)
    meaning = np.array([[float(scales[group[i], o]) * (codes[i, o] - zeros[group[i], o]) for i in range(columns)] for o in range(rows)])
    order = AWQ_ORDER if method == "awq" else range(8)
    stored_zeros = zeros if method in ("awq", "gptq_v2") else zeros - 1

    def words_of_outputs(values: np.ndarray) -> np.ndarray:
        packed = np.zeros((len(values), rows // 8), np.uint32)
        for r in range(len(values)):
            for word in range(rows // 8):
                for place, output in enumerate(order):
                    packed[r, word] |= np.uint32(int(values[r, 8 * word + output]) << (4 * place))
        return packed.view(np.int32)

    tensors = {"qzeros": words_of_outputs(stored_zeros), "scales": scales}
    if method == "awq":
        return tensors | {"qweight": words_of_outputs(codes)}, meaning
    qweight = np.zeros((columns // 8, rows), np.uint32)
    for i in range(columns):
        for o in range(rows):
            qweight[i // 8, o] |= np.uint32(int(codes[i, o]) << (4 * (i % 8)))
    return tensors | {"qweight": qweight.view(np.int32), "g_idx": group.astype(np.int32)}, meaning


def packed_directory(folder: Path, method: str, name: str = "llama", **quantization: Any) -> tuple[Path, dict[str, np.ndarray]]:
    """A checkpoint whose linears are packed, and every tensor it stands for."""
    from safetensors.numpy import load_file, save_file

    directory = save_hf(tiny_model(name, **SIZES), folder / "packed")
    rng = np.random.default_rng(20261130)
    stored: dict[str, np.ndarray] = {}
    meaning: dict[str, np.ndarray] = {}
    for key, weight in load_file(directory / "model.safetensors").items():
        module = key.removesuffix(".weight")
        if module.endswith(LINEARS):
            parts, meaning[key] = pack(weight, method, rng)
            stored |= {f"{module}.{part}": array for part, array in parts.items()}
        else:
            stored[key] = meaning[key] = weight
    save_file(stored, directory / "model.safetensors")
    stated: dict[str, Any] = {"quant_method": method[:4].rstrip(), "bits": 4, "group_size": GROUP}
    stated |= {"version": "gemm", "zero_point": True} if method == "awq" else {"checkpoint_format": method.split()[0]}
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": stated | quantization}))
    return directory, meaning


@pytest.mark.parametrize("method", METHODS)
def test_every_code_is_where_the_slow_reading_finds_it(method: str, tmp_path: Path) -> None:
    directory, meaning = packed_directory(tmp_path, method)
    checkpoint = read_checkpoint(directory)
    for name, want in meaning.items():
        got = checkpoint.tensors.load(name)
        np.testing.assert_array_equal(got, want.astype(np.float32))
        np.testing.assert_array_equal(np.concatenate(list(checkpoint.tensors.blocks(name))).reshape(got.shape), got)
    assert checkpoint.quantization.name == f"{method[:4].rstrip().upper()}-int4-g{GROUP}"
    assert 4 < checkpoint.quantization.bits_per_weight < 32
    facts = inspect_source(str(directory))
    assert facts["quantization"]["name"] == checkpoint.quantization.name


def test_a_packed_checkpoint_answers_as_its_own_weights_do(tmp_path: Path) -> None:
    directory, meaning = packed_directory(tmp_path, "awq", "qwen2")
    read_checkpoint(directory).write_hf(tmp_path / "out")
    import torch

    model = tiny_model("qwen2", **SIZES)
    model.load_state_dict({name: torch.tensor(array, dtype=torch.float32) for name, array in meaning.items()})
    np.testing.assert_allclose(logits(load_hf(tmp_path / "out")), logits(model), rtol=0, atol=1e-6)


def test_one_group_for_a_whole_row() -> None:
    packing = packing_of({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": -1}}, "x")
    assert packing is not None
    assert (packing.group_size, packing.n_groups(48), packing.name) == (None, 1, "GPTQ-int4")


@pytest.mark.parametrize(("method", "said"), [("gptq", {"checkpoint_format": "gptq_v2"}), ("gptq_v2", {"checkpoint_format": "gptq"})])
def test_the_two_conventions_of_zero_points_differ(method: str, said: dict[str, Any], tmp_path: Path) -> None:
    """The twin: read by the other convention, every weight is one scale off."""
    directory, meaning = packed_directory(tmp_path, method, **said)
    name = "model.layers.0.mlp.up_proj.weight"
    off = np.abs(read_checkpoint(directory).tensors.load(name) - meaning[name])
    assert off.min() > 0.009 and off.max() < 0.061


def test_awqs_order_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from converters.read import packed_int4

    directory, meaning = packed_directory(tmp_path, "awq")
    monkeypatch.setattr(packed_int4, "_AWQ_ORDER", tuple(range(8)))
    name = "model.layers.0.mlp.up_proj.weight"
    assert not np.array_equal(read_checkpoint(directory).tensors.load(name), meaning[name].astype(np.float32))


REFUSED: dict[str, dict[str, Any]] = {
    "it has 3 bits a weight\n.*would need codes that cross the words": {"quant_method": "gptq", "bits": 3},
    "it has 8 bits a weight\n.*would need words of 4 codes": {"quant_method": "gptq", "bits": 8},
    "its checkpoint_format is 'marlin'\n.*would need the layout of marlin": {
        "quant_method": "gptq",
        "bits": 4,
        "checkpoint_format": "marlin",
    },
    "its version is 'gemv'": {"quant_method": "awq", "bits": 4, "version": "gemv"},
    "it has no zero points": {"quant_method": "awq", "bits": 4, "zero_point": False},
    "quant_method 'exl2'\n.*would need groups of several bit widths": {"quant_method": "exl2", "bits": 4.0},
    "quant_method 'bitsandbytes'\n.*would need its NF4 code table": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "quant_method 'fp8'\n.*would need 8-bit floats": {"quant_method": "fp8"},
    "quant_method 'new'\n.*would need that method's own unpacking": {"quant_method": "new"},
}


@pytest.mark.parametrize("why", REFUSED)
def test_other_packings_are_refused_with_what_they_would_need(why: str, tmp_path: Path) -> None:
    directory, _ = packed_directory(tmp_path, "gptq")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": REFUSED[why]}))
    (directory / "model.safetensors").write_bytes(b"")  # before any work
    with pytest.raises(UnsupportedModelError, match=f"packed is already quantized .*\n.*{why}"):
        read_checkpoint(directory)


@pytest.mark.parametrize(("said", "why"), [({"group_size": 8}, "qzeros is I32"), ({"group_size": 0}, "group_size must be between 1")])
def test_sizes_that_contradict_the_config_are_refused(said: dict[str, Any], why: str, tmp_path: Path) -> None:
    directory, _ = packed_directory(tmp_path, "gptq", **said)
    with pytest.raises(FormatError, match=why):
        read_checkpoint(directory)


def test_a_group_that_is_not_there_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    directory, _ = packed_directory(tmp_path, "gptq")
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.g_idx"][3] = 9
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(FormatError, match="it names group 9 of 2"):
        read_checkpoint(directory).tensors.load("model.layers.0.mlp.up_proj.weight")


def test_a_packed_vector_is_no_packed_linear(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    directory, _ = packed_directory(tmp_path, "gptq")
    tensors = load_file(directory / "model.safetensors")
    tensors["model.norm.qweight"] = tensors.pop("model.norm.weight").view(np.int32)
    save_file(tensors, directory / "model.safetensors")
    for read in (read_checkpoint, lambda path: inspect_source(str(path))):
        with pytest.raises(FormatError, match="1 missing, first model.norm.weight; 1 unknown, first model.norm.qweight"):
            read(directory)


VALUES = st.none() | st.booleans() | st.integers(-2, 40) | st.text(max_size=8) | st.floats()
KEYS = st.sampled_from(["quant_method", "bits", "group_size", "checkpoint_format", "version", "zero_point"])


@given(st.dictionaries(KEYS, VALUES | st.sampled_from(["gptq", "awq", "gemm"]), max_size=6))
def test_no_quantization_config_ends_in_a_traceback(stated: dict[str, Any]) -> None:
    try:
        packing = packing_of({"quantization_config": stated}, "x")
    except ToolkitError:
        return
    assert packing is None or (packing.method in ("gptq", "awq") and (packing.group_size or 1) > 0)
