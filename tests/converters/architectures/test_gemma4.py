"""Gemma 4 against transformers: what is read and written again must answer exactly as the original, field by field."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.architectures import family_of
from converters.checkpoint import Checkpoint
from converters.read import read_checkpoint
from converters.spec import ModelSpec, RopeSpec
from tests.converters.tiny_checkpoints import load_hf, logits, save_hf
from tests.converters.tiny_gemmas import tiny_gemma
from toolkit.errors import FormatError, UnsupportedModelError

FAMILY = family_of("gemma4_text")
NAMES = ("gemma4", "gemma4-dense")


def written(checkpoint: Checkpoint, directory: Path) -> np.ndarray:
    checkpoint.write_hf(directory)
    return logits(load_hf(directory))


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_read_and_written_again_gives_identical_logits(name: str, tmp_path: Path) -> None:
    model = tiny_gemma(name)
    checkpoint = read_checkpoint(save_hf(model, tmp_path / "source"))
    np.testing.assert_array_equal(written(checkpoint, tmp_path / "out"), logits(model))


@pytest.mark.parametrize("name", NAMES)
def test_tensor_shapes_are_exactly_what_transformers_saves(name: str, tmp_path: Path) -> None:
    from safetensors import safe_open

    spec = read_checkpoint(save_hf(tiny_gemma(name), tmp_path / "source")).spec
    with safe_open(tmp_path / "source" / "model.safetensors", "np") as stored:
        saved = {key: tuple(stored.get_slice(key).get_shape()) for key in stored.keys()}  # noqa: SIM118
    assert FAMILY.tensor_shapes(spec) == saved


MUTANTS: dict[str, Any] = {
    "window": lambda spec: replace(spec, sliding_window=6),
    "rope of full layers": lambda spec: replace(spec, rope={**spec.rope, "full": RopeSpec(1e6)}),
    "share that is rotated": lambda spec: replace(
        spec, rope={**spec.rope, "full": RopeSpec(1e6, {"rope_type": "proportional", "partial_rotary_factor": 0.25})}
    ),
    "local rope base": lambda spec: replace(spec, rope={**spec.rope, "sliding": RopeSpec(1e6)}),
    "final softcap": lambda spec: replace(spec, final_logit_softcap=None),
    "norm epsilon": lambda spec: replace(spec, norm=replace(spec.norm, eps=1e-2)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_field_of_the_spec_decides_the_logits(mutant: str, tmp_path: Path) -> None:
    model = tiny_gemma("gemma4")
    checkpoint = read_checkpoint(save_hf(model, tmp_path / "source"))
    broken = replace(checkpoint, spec=MUTANTS[mutant](checkpoint.spec))
    assert np.abs(written(broken, tmp_path / "out") - logits(model)).max() > 1e-3


def test_the_scalar_of_a_layer_is_carried_over_though_it_is_no_parameter(tmp_path: Path) -> None:
    import torch

    model = tiny_gemma("gemma4")
    before = logits(model)
    with torch.no_grad():
        model.model.layers[2].layer_scalar.mul_(1.5)
    checkpoint = read_checkpoint(save_hf(model, tmp_path / "source"))
    assert np.abs(written(checkpoint, tmp_path / "out") - before).max() > 1e-3
    np.testing.assert_array_equal(logits(load_hf(tmp_path / "out")), logits(model))


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_survives_a_trip_through_json_and_through_its_own_config(name: str) -> None:
    spec = FAMILY.spec_from_config(tiny_gemma(name).config.to_dict())
    assert ModelSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec
    assert FAMILY.spec_from_config(json.loads(json.dumps(FAMILY.config_from_spec(spec)))) == spec


def test_both_spellings_of_the_wide_heads_are_read_alike() -> None:
    listed = tiny_gemma("gemma4").config.to_dict()
    assert "per_layer_config" in listed and "global_head_dim" not in listed, "transformers saves the newer spelling"
    published = {key: value for key, value in listed.items() if key != "per_layer_config"}
    assert FAMILY.spec_from_config(published | {"global_head_dim": 32}) == FAMILY.spec_from_config(listed)
    assert FAMILY.spec_from_config(published | {"global_head_dim": 64}) != FAMILY.spec_from_config(listed)


def test_the_cache_counts_wide_heads_of_layers_that_keep_their_keys() -> None:
    spec = FAMILY.spec_from_config(tiny_gemma("gemma4").config.to_dict())
    assert spec.kv_bytes_per_token(1) == 2 * 2 * (2 * 16 + 2 * 32), "2 sliding layers of 16, 2 full ones of 32; 2 heads"
    dense = FAMILY.spec_from_config(tiny_gemma("gemma4-dense").config.to_dict())
    assert dense.kv_bytes_per_token(1) == 2 * 3 * (2 * 16 + 1 * 32)


def test_what_a_config_leaves_out_is_what_transformers_assumes() -> None:
    from transformers import Gemma4TextConfig

    stated = Gemma4TextConfig().to_dict()
    kept = ("model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "bos_token_id", "eos_token_id", "pad_token_id")
    spec = FAMILY.spec_from_config(stated)
    assert FAMILY.spec_from_config({key: stated[key] for key in kept}) == spec
    assert (spec.head_dim, spec.full_head_dim, spec.layer_types[-1]) == (256, 512, "full")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "experts": ({"enable_moe_block": True}, "mixture of experts"),
    "encoder": ({"use_bidirectional_attention": "all"}, "encoder"),
    "scaled rope": (
        {
            "rope_parameters": {
                kind: {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")
            }
        },
        "RoPE 'linear' in sliding layers",
    ),
    "a layer of its own": (
        {"per_layer_config": {"1": {"head_dim": 32}, "3": {"head_dim": 64}, "5": {"head_dim": 32}}},
        "differ in another way",
    ),
    "a wide sliding layer": ({"per_layer_config": {str(i): {"head_dim": 32} for i in range(6)}}, "differ in another way"),
    "an MLP of its own": ({"per_layer_config": {"1": {"intermediate_size": 8}}}, "differ in another way"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_variant_nobody_checked_is_refused_by_name(case: str) -> None:
    changes, what = REFUSED[case]
    with pytest.raises(UnsupportedModelError, match=what):
        FAMILY.spec_from_config(tiny_gemma("gemma4").config.to_dict() | changes)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "sliding at the end": ({"layer_types": ["full_attention", "sliding_attention"] * 3}, "must end in full_attention"),
    "nothing to take from": ({"num_kv_shared_layers": 5}, "leaves no full layer among the first 1"),
    "tokens without a row": ({"vocab_size_per_layer_input": 300}, "without a row"),
    "nothing is rotated": (
        {
            "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.01, "rope_theta": 1e6}}
            | {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
        },
        "rotates nothing",
    ),
    "biases": ({"attention_bias": True}, "without attention biases"),
    "a list for an object": ({"per_layer_config": {"1": [32]}}, "must hold an object for each layer index, found 1:"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_config_is_refused_by_its_key(case: str) -> None:
    changes, why = WRONG[case]
    with pytest.raises(FormatError, match=why):
        FAMILY.spec_from_config(tiny_gemma("gemma4").config.to_dict() | changes)


def test_gguf_is_refused_by_name() -> None:
    spec = FAMILY.spec_from_config(tiny_gemma("gemma4").config.to_dict())
    with pytest.raises(UnsupportedModelError, match="Gemma 4 is not read from or written to GGUF"):
        FAMILY.gguf_names(spec)
