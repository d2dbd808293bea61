"""What mlx_lm computes beside what checkpoints ask for: equal logits where a model is let through, other ones where it is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.spec import RopeSpec
from converters.targets.base import ConvertOptions
from converters.targets.mlx import TARGET
from converters.targets.mlx_run import MlxModel
from converters.targets.mlx_support import refusal
from tests.converters.targets.mlx_models import SIZES, TOKEN_IDS, hf_checkpoint, wide_model, written
from tests.converters.tiny_checkpoints import CONFIGS, LLAMA3, logits
from toolkit.errors import FormatError, UnsupportedModelError

pytest.importorskip("mlx_lm", reason="pip install 'ondevice-toolkit[mlx]'")
CONTEXT = 24
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
# Windows of models whose layers all see everything in mlx_lm are as long as the text here; `gemma` see below.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in CONFIGS if name != "gemma"} | {
    "gemma2": ("gemma2", {"sliding_window": CONTEXT}),
    "qwen2-sliding": ("qwen2-sliding", {"sliding_window": CONTEXT}),
    "gemma3, only full layers": ("gemma3", {"sliding_window_pattern": 1}),
    "gemma3, untied sizes": ("gemma3", {"hidden_size": 256}),
    "llama, yarn": ("llama", {"rope_parameters": YARN}),
    "qwen2, yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3, yarn": ("qwen3", {"rope_parameters": YARN | {"beta_fast": 16.0, "beta_slow": 2.0}}),
    "llama, llama3 in sight": ("llama", {"rope_parameters": {"rope_theta": 5e5, **LLAMA3, "original_max_position_embeddings": 16}}),
}


def by_mlx(folder: Path) -> np.ndarray:
    """Logits of MLX's own kernels, a few tokens at a time as a runtime feeds them."""
    model = MlxModel(folder, is_native=True)
    cache = model._new_cache()
    return np.concatenate([model._step(TOKEN_IDS[start : start + 5], cache) for start in range(0, CONTEXT, 5)])


@pytest.mark.parametrize("name", MODELS)
def test_mlx_lm_sees_the_model_transformers_sees(name: str, tmp_path: Path) -> None:
    config, changes = MODELS[name]
    checkpoint = hf_checkpoint(tmp_path, config, **changes)
    assert refusal(checkpoint.spec, CONTEXT) is None
    want = logits(wide_model(config, **changes))[0]
    assert np.abs(by_mlx(written(checkpoint, "fp32", tmp_path / "out")) - want).max() < 1e-4


def test_gemma_differs_by_its_gelu_and_by_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlx.nn as nn

    folder = written(hf_checkpoint(tmp_path, "gemma"), "fp32", tmp_path / "out")
    want = logits(wide_model("gemma"))[0]
    as_it_is = np.abs(by_mlx(folder) - want).max()
    assert 1e-4 < as_it_is < 1e-2
    monkeypatch.setattr(nn, "gelu", nn.gelu_approx)
    assert np.abs(by_mlx(folder) - want).max() < 1e-4


# The keys mlx_lm passes over in silence when they are missing: without each it computes another model.
KEYS = {
    "llama": ["rope_theta", "num_key_value_heads"],
    "llama-linear": ["rope_scaling"],
    "qwen2": ["rope_theta"],
    "gemma2": ["query_pre_attn_scalar", "attn_logit_softcapping"],
    "gemma3": ["rope_local_base_freq", "sliding_window_pattern", "query_pre_attn_scalar", "sliding_window"],
}
# Those whose absence it does notice, by the shape of a weight or when its layers are built.
CANNOT_DO_WITHOUT: dict[tuple[str, str], tuple[type[Exception], str]] = {
    ("llama", "num_key_value_heads"): (FormatError, "Expected shape .* for parameter model.layers.0.self_attn.k_proj.weight"),
    ("gemma3", "sliding_window_pattern"): (IndexError, "list index out of range"),
}
OTHER_VALUES = {"rope_local_base_freq": 5e5, "rope_theta": 777.0}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in KEYS.items() for key in keys])
def test_a_key_of_config_json_decides_what_mlx_lm_computes(name: str, key: str, tmp_path: Path) -> None:
    """The twin of the test above: it would see a key that mlx_lm does not find."""
    changes: dict[str, Any] = {"sliding_window": CONTEXT} if name == "gemma2" else {}
    if key == "rope_theta":  # another base than mlx_lm's defaults
        changes["rope_parameters"] = {"rope_type": "default", "rope_theta": OTHER_VALUES[key]}
    checkpoint = hf_checkpoint(tmp_path, name, **changes)
    if key == "rope_local_base_freq":
        rope = {"full": checkpoint.spec.rope["full"], "sliding": RopeSpec(OTHER_VALUES[key])}
        checkpoint = replace(checkpoint, spec=replace(checkpoint.spec, rope=rope))
    folder = written(checkpoint, "fp32", tmp_path / "out")
    whole = by_mlx(folder)
    config = json.loads((folder / "config.json").read_text())
    del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    if (name, key) in CANNOT_DO_WITHOUT:
        kind, said = CANNOT_DO_WITHOUT[name, key]
        with pytest.raises(kind, match=said):
            by_mlx(folder)
    else:
        assert np.abs(by_mlx(folder) - whole).max() > 1e-3


REFUSED: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "windows": ("gemma2", {}, 64, "lets every layer see everything, the checkpoint's see 5 tokens"),
    "windows of qwen": ("qwen2-sliding", {}, 64, "lets every layer see everything, the checkpoint's see 5 tokens"),
    "no full layer": ("gemma3", {"sliding_window_pattern": 6}, 64, "makes every n-th layer a full one"),
    "biases": ("qwen3", {"attention_bias": True}, 64, "has no attention biases, the checkpoint has some"),
    "activation": ("llama", {"hidden_act": "gelu_pytorch_tanh"}, 64, "always takes silu, the checkpoint takes gelu_pytorch_tanh"),
    "head size": ("qwen2", {"head_dim": 32}, 64, "has heads of hidden_size / heads = 16, the checkpoint's are 32 wide"),
    "no softcap": ("gemma2", {"sliding_window": 64, "attn_logit_softcapping": None}, 64, "leaves one of them uncapped"),
    "softcap": ("gemma3", {"final_logit_softcapping": 3.0}, 64, "caps no scores and no logits"),
    "factor of yarn": ("llama", {"rope_parameters": YARN | {"attention_factor": 1.5}}, 64, "reads no attention_factor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_mlx_lm_passes_over_is_refused_before_any_work(case: str, tmp_path: Path) -> None:
    name, changes, context_length, why = REFUSED[case]
    checkpoint = hf_checkpoint(tmp_path, name, **changes)
    with pytest.raises(UnsupportedModelError, match=why) as raised:
        TARGET.check(checkpoint, [], ConvertOptions(context_length=context_length))
    assert raised.value.fix


@pytest.mark.parametrize("case", ["windows", "windows of qwen", "activation", "softcap", "factor of yarn"])
def test_what_is_refused_would_have_been_another_model(case: str, tmp_path: Path) -> None:
    """The twin of the refusals: where mlx_lm opens the folder all the same, it answers otherwise."""
    name, changes, _, _ = REFUSED[case]
    folder = written(hf_checkpoint(tmp_path, name, **changes), "fp32", tmp_path / "out")
    assert np.abs(by_mlx(folder) - logits(wide_model(name, **changes))[0]).max() > 1e-3


def test_a_window_as_long_as_the_context_is_no_reason_to_refuse(tmp_path: Path) -> None:
    spec = hf_checkpoint(tmp_path, "gemma2", sliding_window=64).spec
    assert refusal(spec, 64) is None
    found = refusal(spec, 65)
    assert found is not None and found.fix == "use --context 64"


def test_scaling_that_only_other_layers_get_is_refused(tmp_path: Path) -> None:
    spec = hf_checkpoint(tmp_path, "gemma3").spec
    scaled = replace(spec, rope={**spec.rope, "sliding": RopeSpec(1e4, {"rope_type": "linear", "factor": 2.0})})
    found = refusal(scaled, 64)
    assert found is not None and "does not scale RoPE in sliding layers" in found.why


def test_an_unknown_family_is_refused_by_name(tmp_path: Path) -> None:
    spec = replace(hf_checkpoint(tmp_path, "llama", **SIZES).spec, model_type="mamba")
    found = refusal(spec, 64)
    assert found is not None and "its model_type is mamba; checked in mlx_lm are gemma, gemma2, gemma3_text, llama" in found.why
