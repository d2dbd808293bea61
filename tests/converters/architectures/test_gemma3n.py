"""Gemma 3n against transformers: what is read and written again must answer exactly as the original, field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.architectures import family_of
from converters.checkpoint import Checkpoint
from converters.read import read_checkpoint
from converters.spec import ModelSpec
from converters.stored_blocks import FloatStored
from tests.converters.tiny_checkpoints import load_hf, logits, save_hf
from tests.converters.tiny_gemmas import tiny_gemma
from toolkit.errors import FormatError, UnsupportedModelError

FAMILY = family_of("gemma3n_text")


def written(checkpoint: Checkpoint, directory: Path) -> np.ndarray:
    checkpoint.write_hf(directory)
    return logits(load_hf(directory))


def test_a_directory_read_and_written_again_gives_identical_logits(tmp_path: Path) -> None:
    model = tiny_gemma("gemma3n")
    checkpoint = read_checkpoint(save_hf(model, tmp_path / "source"))
    np.testing.assert_array_equal(written(checkpoint, tmp_path / "out"), logits(model))


def test_tensor_shapes_are_exactly_what_transformers_saves(tmp_path: Path) -> None:
    from safetensors import safe_open

    model = tiny_gemma("gemma3n")
    spec = read_checkpoint(save_hf(model, tmp_path / "source")).spec
    with safe_open(tmp_path / "source" / "model.safetensors", "np") as stored:
        saved = {key: tuple(stored.get_slice(key).get_shape()) for key in stored.keys()}  # noqa: SIM118
    assert FAMILY.tensor_shapes(spec) == saved
    assert spec.n_parameters == sum(parameter.numel() for parameter in model.parameters())


def _altup(**changes: Any) -> Any:
    return lambda spec: replace(spec, altup=replace(spec.altup, **changes))


MUTANTS: dict[str, Any] = {
    "shared layers": lambda spec: replace(spec, n_kv_shared_layers=1),
    "sparsity": lambda spec: replace(spec, activation_sparsity=(0.6, 0.6, 0.0, 0.0, 0.0, 0.0)),
    "active stream": _altup(active_index=1),
    "corrected scale": _altup(corrects_scale=False),
    "window": lambda spec: replace(spec, sliding_window=6),
    "layer types": lambda spec: replace(spec, layer_types=("full", "sliding") * 3),
    "local rope base": lambda spec: replace(spec, rope={"full": spec.rope["full"], "sliding": spec.rope["full"]}),
    "final softcap": lambda spec: replace(spec, final_logit_softcap=30.0),
    "norm epsilon": lambda spec: replace(spec, norm=replace(spec.norm, eps=1e-2)),
}


class WithZeros(FloatStored):
    """A checkpoint's tensors, and zeros for what a mutated spec asks for beside them."""

    def __init__(self, inner: Any, shapes: dict[str, tuple[int, ...]]) -> None:
        self.inner, self.shapes = inner, shapes

    def names(self) -> tuple[str, ...]:
        return tuple(self.shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def load(self, name: str) -> np.ndarray:
        return np.concatenate(list(self.blocks(name)))

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        return self.inner.blocks(name) if name in self.inner.names() else iter([np.zeros(self.shapes[name], np.float32)])


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_field_of_the_spec_decides_the_logits(mutant: str, tmp_path: Path) -> None:
    model = tiny_gemma("gemma3n")
    checkpoint = read_checkpoint(save_hf(model, tmp_path / "source"))
    spec = MUTANTS[mutant](checkpoint.spec)
    broken = replace(checkpoint, spec=spec, tensors=WithZeros(checkpoint.tensors, FAMILY.tensor_shapes(spec)))
    assert np.abs(written(broken, tmp_path / "out") - logits(model)).max() > 1e-3


def test_a_spec_survives_a_trip_through_json_and_through_its_own_config() -> None:
    spec = FAMILY.spec_from_config(tiny_gemma("gemma3n").config.to_dict())
    assert ModelSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec
    assert FAMILY.spec_from_config(json.loads(json.dumps(FAMILY.config_from_spec(spec)))) == spec


def test_only_layers_with_keys_of_their_own_fill_the_cache() -> None:
    spec = FAMILY.spec_from_config(tiny_gemma("gemma3n").config.to_dict())
    assert spec.kv_bytes_per_token(4) == 4 * 2 * 4 * 2 * 16, "4 of 6 layers, keys and values, 2 heads of 16, 4 bytes"
    assert replace(spec, n_kv_shared_layers=0).kv_bytes_per_token(4) == 4 * 2 * 6 * 2 * 16


def test_what_a_config_leaves_out_is_what_transformers_assumes() -> None:
    from transformers import Gemma3nTextConfig

    stated = Gemma3nTextConfig().to_dict()
    spec = FAMILY.spec_from_config(stated)
    kept = ("model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "bos_token_id", "eos_token_id", "pad_token_id")
    assert FAMILY.spec_from_config({key: stated[key] for key in kept}) == spec
    assert (spec.n_layers, spec.n_kv_layers, spec.activation_sparsity[9:11]) == (35, 20, (0.95, 0.0))


def test_keys_stored_for_a_sharing_layer_are_passed_over_and_any_other_extra_is_not(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = save_hf(tiny_gemma("gemma3n"), tmp_path / "source")
    weights = load_file(folder / "model.safetensors")
    spec = read_checkpoint(folder).spec
    save_file(weights | {"model.layers.5.self_attn.k_proj.weight": np.ones((32, 64), np.float32)}, folder / "model.safetensors")
    assert read_checkpoint(folder).spec == spec
    save_file(weights | {"model.layers.5.self_attn.r_proj.weight": np.ones((32, 64), np.float32)}, folder / "model.safetensors")
    with pytest.raises(FormatError, match=r"1 unknown, first model\.layers\.5\.self_attn\.r_proj"):
        read_checkpoint(folder)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "all layers share": ({"num_kv_shared_layers": 6}, "between 0 and 5"),
    "nothing to take from": ({"num_kv_shared_layers": 5}, "leaves no full layer among the first 1"),
    "a width missing": ({"intermediate_size": [96] * 5}, "must list 6 layers, lists 5"),
    "no width": ({"intermediate_size": []}, "empty list"),
    "a width of text": ({"intermediate_size": ["96"] * 6}, "whole number"),
    "one sparsity for all": ({"activation_sparsity_pattern": 0.95}, "must list 6 layers"),
    "all zeroed": ({"activation_sparsity_pattern": [1.0] * 6}, "from 0 to below 1"),
    "no such stream": ({"altup_active_idx": 4}, "between 0 and 3"),
    "biases": ({"attention_bias": True}, "without attention biases"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_config_is_refused_by_its_key(case: str) -> None:
    changes, why = WRONG[case]
    with pytest.raises(FormatError, match=why):
        FAMILY.spec_from_config(tiny_gemma("gemma3n").config.to_dict() | changes)


def test_gguf_is_refused_by_name() -> None:
    spec = FAMILY.spec_from_config(tiny_gemma("gemma3n").config.to_dict())
    with pytest.raises(UnsupportedModelError, match="Gemma 3n is not read from or written to GGUF"):
        FAMILY.gguf_names(spec)
