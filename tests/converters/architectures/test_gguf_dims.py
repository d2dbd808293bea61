"""What a GGUF header does not say, and the families must know."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.architectures import family_of_gguf
from converters.read.gguf_tensors import GgufFile
from tests.converters.tiny_checkpoints import tiny_model, write_gguf
from toolkit.errors import FormatError


def spec_of(name: str, path: Path, **metadata: Any) -> Any:
    file = GgufFile(write_gguf(tiny_model(name), path / "tiny.gguf", metadata=metadata))
    return family_of_gguf(str(file.metadata["general.architecture"])).spec_from_gguf(file)


@pytest.mark.parametrize(("architecture", "n_layers", "hidden", "n_heads", "head_dim", "scalar"), [
    ("gemma2", 46, 4608, 32, 128, 144.0),
    ("gemma3", 62, 5376, 32, 128, 168.0),
    ("gemma2", 26, 2304, 8, 256, 256.0),
    ("gemma3", 34, 2560, 8, 256, 256.0),
])  # fmt: skip
def test_query_pre_attn_scalar_is_head_dim_but_for_the_27b_models(
    architecture: str, n_layers: int, hidden: int, n_heads: int, head_dim: int, scalar: float
) -> None:
    keys = {"block_count": n_layers, "embedding_length": hidden, "attention.head_count": n_heads, "attention.key_length": head_dim}
    keys |= {"feed_forward_length": 8192, "context_length": 8192, "attention.layer_norm_rms_epsilon": 1e-6, "attention.head_count_kv": 4}

    class Header:
        name = "big.gguf"
        metadata = {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in keys.items()}

        def shape(self, tensor_name: str) -> tuple[int, ...] | None:
            return (262144, hidden) if tensor_name == "token_embd.weight" else None

    spec = family_of_gguf(architecture).spec_from_gguf(Header())  # type: ignore[arg-type]
    assert spec.query_pre_attn_scalar == scalar


def test_gemma_window_patterns_are_the_familys_own_if_the_file_is_silent(tmp_path: Path) -> None:
    silent = {"gemma3.attention.sliding_window_pattern": None}
    assert spec_of("gemma3", tmp_path, **silent).layer_types == ("sliding",) * 4
    silent = {"gemma2.attention.sliding_window_pattern": None}
    assert spec_of("gemma2", tmp_path, **silent).layer_types == ("sliding", "full", "sliding", "full")


def test_a_pattern_may_be_one_truth_value_a_layer(tmp_path: Path) -> None:
    key = "gemma3.attention.sliding_window_pattern"
    assert spec_of("gemma3", tmp_path, **{key: [True, False, False, True]}).layer_types == ("sliding", "full", "full", "sliding")
    with pytest.raises(FormatError, match="one value for each of 4 layers"):
        spec_of("gemma3", tmp_path, **{key: [True, False]})


def test_gemma2_softcaps_have_defaults_and_gemma3_has_none(tmp_path: Path) -> None:
    spec = spec_of("gemma2", tmp_path, **{"gemma2.attn_logit_softcapping": None, "gemma2.final_logit_softcapping": None})
    assert (spec.attn_logit_softcap, spec.final_logit_softcap) == (50.0, 30.0)
    spec = spec_of("gemma3", tmp_path)
    assert (spec.attn_logit_softcap, spec.final_logit_softcap) == (None, None)


def test_stop_tokens_are_the_files_own_then_the_turn_ends_of_its_vocabulary(tmp_path: Path) -> None:
    # <|im_end|> is 261, <|endoftext|> 259; 260 is <|im_start|>, which ends nothing.
    assert spec_of("llama", tmp_path).eos_token_ids == (261, 259)
    assert spec_of("llama", tmp_path, **{"tokenizer.ggml.eot_token_id": 7}).eos_token_ids == (261, 7, 259)
    plain = [1] * 262
    assert spec_of("llama", tmp_path, **{"tokenizer.ggml.token_type": plain}).eos_token_ids == (261,)


def test_per_layer_head_counts_are_refused_not_misread(tmp_path: Path) -> None:
    file = GgufFile(write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf"))
    metadata = dict(file.metadata) | {"llama.attention.head_count_kv": np.array([2, 2, 1, 2])}
    object.__setattr__(file, "header", replace(file.header, metadata=metadata))
    with pytest.raises(FormatError, match="llama.attention.head_count_kv must be a whole number"):
        family_of_gguf("llama").spec_from_gguf(file)


@pytest.mark.parametrize("key", ["block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"])
def test_a_missing_key_is_named_as_the_file_spells_it(key: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=rf"llama\.{key} is missing"):
        spec_of("llama", tmp_path, **{f"llama.{key}": None})
