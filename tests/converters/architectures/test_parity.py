"""Each family against transformers: what is read and written again must answer exactly as the original.

The mutants at the end change one field of the spec each; every one of them must change the logits, or the test above them
proves nothing about that field.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.architectures import family_of, family_of_gguf
from converters.checkpoint import Checkpoint
from converters.read import read_checkpoint
from converters.spec import RopeSpec
from tests.converters.tiny_checkpoints import CONFIGS, load_hf, logits, save_hf, tiny_model, write_gguf

# GGUF stores 1 + weight of a Gemma norm in float32: what comes back differs in the last bits.
GGUF_TOLERANCE = 2e-5
IN_GGUF = [name for name in CONFIGS if name != "qwen2-sliding"]  # llama.cpp runs every Qwen with full attention


def written(checkpoint: Checkpoint, directory: Path) -> np.ndarray:
    checkpoint.write_hf(directory)
    return logits(load_hf(directory))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_directory_read_and_written_again_gives_identical_logits(name: str, tmp_path: Path) -> None:
    model = tiny_model(name)
    checkpoint = read_checkpoint(save_hf(model, tmp_path / "source"))
    np.testing.assert_array_equal(written(checkpoint, tmp_path / "out"), logits(model))


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_gguf_file_gives_the_logits_of_the_model_it_was_made_from(name: str, tmp_path: Path) -> None:
    # GGUF says nothing about query_pre_attn_scalar: outside the 27B models it is head_dim.
    scalar = {"query_pre_attn_scalar": 12} if name.startswith(("gemma2", "gemma3")) else {}
    model = tiny_model(name, **scalar)
    checkpoint = read_checkpoint(write_gguf(model, tmp_path / "tiny.gguf"))
    np.testing.assert_allclose(written(checkpoint, tmp_path / "out"), logits(model), atol=GGUF_TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_tensor_shapes_are_exactly_what_transformers_saves(name: str, tmp_path: Path) -> None:
    from safetensors import safe_open

    model = tiny_model(name)
    spec = read_checkpoint(save_hf(model, tmp_path / "source")).spec
    with safe_open(tmp_path / "source" / "model.safetensors", "np") as stored:
        saved = {key: tuple(stored.get_slice(key).get_shape()) for key in stored.keys()}  # noqa: SIM118
    assert family_of(spec.model_type).tensor_shapes(spec) == saved
    assert spec.n_parameters == sum(parameter.numel() for parameter in model.parameters())


MUTANTS: dict[str, tuple[str, Any]] = {
    "rope base": ("llama", lambda spec: replace(spec, rope={"full": RopeSpec(10000.0)})),
    "rope scaling": ("llama-linear", lambda spec: replace(spec, rope={"full": RopeSpec(10000.0)})),
    "local rope base": ("gemma3", lambda spec: replace(spec, rope={"full": spec.rope["full"], "sliding": spec.rope["full"]})),
    "window pattern": ("gemma3", lambda spec: replace(spec, layer_types=("sliding", "full", "sliding", "full"))),
    "window": ("gemma2", lambda spec: replace(spec, sliding_window=6)),
    "window of qwen": ("qwen2-sliding", lambda spec: replace(spec, sliding_window=6)),
    "query scalar": ("gemma3", lambda spec: replace(spec, query_pre_attn_scalar=12.0)),
    "attention softcap": ("gemma2", lambda spec: replace(spec, attn_logit_softcap=None)),
    "final softcap": ("gemma2", lambda spec: replace(spec, final_logit_softcap=None)),
    "activation": ("llama", lambda spec: replace(spec, activation="gelu_pytorch_tanh")),
    "norm epsilon": ("qwen3", lambda spec: replace(spec, norm=replace(spec.norm, eps=1e-2))),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_field_of_the_spec_decides_the_logits(mutant: str, tmp_path: Path) -> None:
    name, mutate = MUTANTS[mutant]
    model = tiny_model(name)
    checkpoint = read_checkpoint(save_hf(model, tmp_path / "source"))
    broken = replace(checkpoint, spec=mutate(checkpoint.spec))
    assert np.abs(written(broken, tmp_path / "out") - logits(model)).max() > 1e-3


def test_llama3_scaling_moves_the_logits_of_a_long_prompt(tmp_path: Path) -> None:
    """At 24 positions only a small original context shows the scaling; the tensor itself is checked in test_rope."""
    model = tiny_model("llama-3.2")
    checkpoint = read_checkpoint(save_hf(model, tmp_path / "source"))
    broken = replace(checkpoint, spec=replace(checkpoint.spec, rope={"full": RopeSpec(500000.0)}))
    assert not np.array_equal(written(broken, tmp_path / "out"), logits(model))


@pytest.mark.parametrize(("name", "architecture"), [("llama", "llama"), ("llama-bias", "llama"), ("gemma3", "gemma3"), ("gemma", "gemma")])
def test_values_a_gguf_converter_changed_must_be_changed_back(
    name: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of the GGUF test: with a family that only renames, logits are wrong."""
    model = tiny_model(name)
    family = family_of_gguf(architecture)
    monkeypatch.setattr(family, "from_gguf", lambda gguf_name, array, spec: (family.gguf_names(spec)[gguf_name], array))
    checkpoint = read_checkpoint(write_gguf(model, tmp_path / "tiny.gguf"))
    assert np.abs(written(checkpoint, tmp_path / "out") - logits(model)).max() > 1e-2


def test_qwen_rows_are_not_permuted(tmp_path: Path) -> None:
    from converters.architectures.llama import unpermute_rows

    model = tiny_model("qwen3")
    checkpoint = read_checkpoint(write_gguf(model, tmp_path / "tiny.gguf"))
    name = "model.layers.0.self_attn.q_proj.weight"
    stored = model.state_dict()[name].numpy()
    np.testing.assert_array_equal(checkpoint.tensors.load(name), stored)
    assert not np.array_equal(unpermute_rows(stored, 4), stored), "the permutation would not show on this tensor"


OLD_SPELLINGS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "llama 4.x": ("llama", {"rope_theta": 5000.0}, ("rope_parameters",)),
    "llama 3.1, 4.x": ("llama-3.2", {"rope_theta": 5e5, "rope_scaling": "FROM_ROPE_PARAMETERS"}, ("rope_parameters",)),
    "linear, `type`": ("llama-linear", {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}}, ("rope_parameters",)),
    "gemma3 4.x": (
        "gemma3-linear",
        {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window_pattern": 2,
        },
        ("rope_parameters", "layer_types", "_sliding_window_pattern"),
    ),
    "gemma2 4.x": ("gemma2", {"rope_theta": 1e4}, ("rope_parameters", "layer_types")),
    "qwen2 4.x": ("qwen2-sliding", {"rope_theta": 1e4}, ("rope_parameters", "layer_types")),
}


@pytest.mark.parametrize("spelling", OLD_SPELLINGS)
def test_older_config_spellings_give_the_same_spec(spelling: str, tmp_path: Path) -> None:
    name, added, removed = OLD_SPELLINGS[spelling]
    config = tiny_model(name).config.to_dict()
    family = family_of(config["model_type"])
    want = family.spec_from_config(config)
    added = {key: config["rope_parameters"] if value == "FROM_ROPE_PARAMETERS" else value for key, value in added.items()}
    old = {key: value for key, value in config.items() if key not in removed} | added
    assert family.spec_from_config(json.loads(json.dumps(old))) == want
    assert family.spec_from_config({k: v for k, v in old.items() if k not in added}) != want or spelling in ("gemma2 4.x", "qwen2 4.x")


@pytest.mark.parametrize("name", CONFIGS)
def test_our_config_is_read_alike_by_us_and_states_both_rope_spellings(name: str) -> None:
    spec = family_of(CONFIGS[name]["model_type"]).spec_from_config(tiny_model(name).config.to_dict())
    family = family_of(spec.model_type)
    config = family.config_from_spec(spec)
    assert family.spec_from_config(config) == spec
    assert config["rope_theta"] == spec.rope["full"].theta
    assert config["rope_parameters"]
    without_nested = {key: value for key, value in config.items() if key != "rope_parameters"}
    assert family.spec_from_config(without_nested) == spec, "a reader that knows only the older keys would get another model"
