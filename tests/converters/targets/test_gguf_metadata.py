"""What llama.cpp assumes of an architecture decides what may be written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from converters.architectures.layer_types import sliding_pattern
from converters.spec import RopeSpec
from converters.targets.gguf_metadata import ARCHITECTURES, general_metadata, model_metadata, refuse_unsupported
from tests.converters.small_model import small_checkpoint
from tests.converters.targets.gguf_files import WRITABLE, writable_checkpoint
from toolkit.errors import UnsupportedModelError
from toolkit.manifest import LicenseRecord


@pytest.mark.parametrize("name", WRITABLE)
def test_every_tiny_model_may_be_written(name: str, tmp_path: Path) -> None:
    refuse_unsupported(writable_checkpoint(name, tmp_path))


YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "activation relu": ("llama", {"activation": "relu"}),
    "query_pre_attn_scalar 20; llama.cpp takes 12": ("gemma3", {"query_pre_attn_scalar": 20.0}),
    "a gemma2 with an output layer of its own": ("gemma2", {"tie_embeddings": False}),
    "a qwen3 with attention biases": ("qwen3", {"has_attention_bias": True}),
    "a qwen2 with sliding windows": ("qwen2", {"layer_types": ("full", "sliding", "full", "full")}),
    "4 heads of 12 beside hidden_size 32": ("qwen2", {"head_dim": 12}),
    "a gemma2 without softcaps": ("gemma2", {"attn_logit_softcap": None}),
    "a gemma3_text with a softcap on scores": ("gemma3", {"attn_logit_softcap": 50.0}),
    "RoPE scaling yarn for llama": ("llama", {"rope": {"full": RopeSpec(1e4, YARN)}}),
    "RoPE scaling llama3 for qwen2": ("qwen2", {"rope": {"full": RopeSpec(1e4, LLAMA3)}}),
    "RoPE of sliding layers": ("gemma2", {"rope": {"full": RopeSpec(1e4), "sliding": RopeSpec(1e5)}}),
    "its model_type is mamba": ("llama", {"model_type": "mamba"}),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_llama_cpp_would_compute_differently_is_refused(why: str, tmp_path: Path) -> None:
    name, changes = REFUSED[why]
    checkpoint = writable_checkpoint(name, tmp_path)
    with pytest.raises(UnsupportedModelError, match=why):
        refuse_unsupported(replace(checkpoint, spec=replace(checkpoint.spec, **changes)))


@pytest.mark.parametrize(("model", "n_layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_27b_models_scale_by_hidden_size_over_heads(model: str, n_layers: int, tmp_path: Path) -> None:
    checkpoint = writable_checkpoint(model, tmp_path)
    large = replace(checkpoint.spec, n_layers=n_layers, query_pre_attn_scalar=checkpoint.spec.hidden_size / checkpoint.spec.n_heads)
    refuse_unsupported(replace(checkpoint, spec=large))
    with pytest.raises(UnsupportedModelError, match="query_pre_attn_scalar 12"):
        refuse_unsupported(replace(checkpoint, spec=replace(large, query_pre_attn_scalar=12.0)))


@pytest.mark.parametrize(("period", "stated"), [(1, 1), (2, 2), (3, 3), (4, 4)])
def test_windows_are_written_as_a_period(period: int, stated: int, tmp_path: Path) -> None:
    spec = replace(writable_checkpoint("gemma3", tmp_path).spec, layer_types=sliding_pattern(4, period))
    assert model_metadata(spec)["gemma3.attention.sliding_window_pattern"] == stated


def test_windows_without_a_period_are_written_layer_by_layer(tmp_path: Path) -> None:
    spec = replace(writable_checkpoint("gemma3", tmp_path).spec, layer_types=("full", "sliding", "sliding", "full"))
    assert model_metadata(spec)["gemma3.attention.sliding_window_pattern"] == [False, True, True, False]


def test_every_architecture_has_a_reader() -> None:
    from converters.architectures import FAMILIES, GGUF_FAMILIES

    assert {(FAMILIES[model_type], architecture) for model_type, architecture in ARCHITECTURES.items()} <= {
        (module, architecture) for architecture, module in GGUF_FAMILIES.items()
    }


def test_the_licence_goes_into_the_file_and_no_path_does() -> None:
    checkpoint = replace(small_checkpoint(), license=LicenseRecord("Apache-2.0", "https://example.org/license"))
    metadata = general_metadata(checkpoint, 7)
    assert (metadata["general.license"], metadata["general.license.link"]) == ("apache-2.0", "https://example.org/license")
    assert metadata["general.file_type"] == 7
    assert "general.license" not in general_metadata(replace(checkpoint, license=LicenseRecord("unknown")), 0)
