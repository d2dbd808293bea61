"""A LoRA adapter merged while tensors are read gives the weights PEFT's own merge gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.cli import main
from converters.read import adapter, hf_tensors, read_checkpoint
from converters.read.adapter import apply_adapter
from converters.read.adapter_config import read_adapter_config
from tests.converters.tiny_checkpoints import load_hf, logits, save_hf, tiny_model, write_gguf
from toolkit.bundle import Bundle
from toolkit.errors import FormatError, ToolkitError, UnsupportedModelError, UsageError

LAYERS = "model.layers.{}.{}"
MODULES = ["q_proj", "v_proj", "down_proj"]


class Trained:
    """A base model in a folder, an adapter with random weights beside it, and the logits of PEFT's own merge."""

    def __init__(self, folder: Path, name: str = "llama", **options: Any) -> None:
        import torch
        from peft import LoraConfig, get_peft_model

        self.base = save_hf(tiny_model(name), folder / "tiny-base")
        self.adapter = folder / "tuned"
        settings = {"r": 4, "lora_alpha": 10, "target_modules": MODULES} | options
        model = get_peft_model(load_hf(self.base), LoraConfig(**settings, task_type="CAUSAL_LM"))
        torch.manual_seed(7)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "lora_" in parameter_name:
                    parameter.copy_(torch.randn_like(parameter) * 0.3)
        model.save_pretrained(self.adapter)
        self.merged = model.merge_and_unload()

    def config(self, change: Callable[[dict[str, Any]], object]) -> None:
        path = self.adapter / "adapter_config.json"
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "rank stabilized": ("llama", {"use_rslora": True}),
    "ranks and alphas by pattern": ("llama", {"rank_pattern": {r"layers.1.self_attn.q_proj": 2}, "alpha_pattern": {"down_proj": 3}}),
    "a head of its own": ("llama", {"target_modules": ["lm_head", "k_proj"]}),
    "an embedding of its own": ("llama", {"target_modules": ["embed_tokens", "o_proj"]}),
    "gemma": ("gemma3", {"fan_in_fan_out": True}),  # PEFT takes it back for linears
}


@pytest.mark.parametrize("name", OPTIONS)
def test_weights_are_those_of_pefts_own_merge(name: str, tmp_path: Path) -> None:
    model, options = OPTIONS[name]
    trained = Trained(tmp_path, model, **options)
    merged = apply_adapter(read_checkpoint(trained.base), trained.adapter)
    base = read_checkpoint(trained.base)
    changed = 0
    for tensor, want in trained.merged.state_dict().items():
        if tensor in merged.tensors.names():
            got = merged.tensors.load(tensor)
            np.testing.assert_allclose(got, want.numpy(), rtol=0, atol=1e-6)
            np.testing.assert_allclose(np.concatenate(list(merged.tensors.blocks(tensor))).reshape(got.shape), got, rtol=0, atol=1e-6)
            changed += not np.array_equal(got, base.tensors.load(tensor))
    assert changed == (12 if model == "gemma3" or "modules" not in str(options) else 5)
    merged.write_hf(tmp_path / "out")
    np.testing.assert_allclose(logits(load_hf(tmp_path / "out")), logits(trained.merged), rtol=0, atol=1e-4)


MUTANTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "alpha": lambda config: config.update(lora_alpha=11),
    "rank stabilized": lambda config: config.update(use_rslora=True),
    "alpha pattern": lambda config: config.update(alpha_pattern={"q_proj": 5}),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_number_of_the_config_decides_the_weights(mutant: str, tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    trained.config(MUTANTS[mutant])
    merged = apply_adapter(read_checkpoint(trained.base), trained.adapter)
    name = LAYERS.format(0, "self_attn.q_proj.weight")
    assert np.abs(merged.tensors.load(name) - trained.merged.state_dict()[name].numpy()).max() > 1e-3


def test_name_source_and_content_hash_tell_of_the_adapter(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    base = read_checkpoint(trained.base)
    merged = read_checkpoint(f"{trained.base}#adapter={trained.adapter}")
    assert merged.name == "tiny-base-tuned"
    assert merged.content_hash != base.content_hash
    assert merged.source.uri == f"{trained.base}#adapter={trained.adapter}"
    assert set(merged.source.sha256) - set(base.source.sha256) == {"adapter/adapter_config.json", "adapter/adapter_model.safetensors"}
    trained.config(lambda config: config.update(lora_alpha=11))
    assert read_checkpoint(merged.source.uri).content_hash != merged.content_hash


def test_a_gguf_file_takes_an_adapter_too_and_its_blocks_are_no_longer_its_own(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    trained = Trained(tmp_path)
    trained.config(lambda config: config.update(base_model_name_or_path="someone/Tiny-Base"))
    write_gguf(tiny_model("llama"), tmp_path / "tiny-base.gguf")
    merged = apply_adapter(read_checkpoint(tmp_path / "tiny-base.gguf"), trained.adapter)
    name = LAYERS.format(1, "self_attn.q_proj.weight")
    np.testing.assert_allclose(merged.tensors.load(name), trained.merged.state_dict()[name].numpy(), rtol=0, atol=1e-6)
    packed = read_checkpoint(write_gguf(tiny_model("llama", **sizes), tmp_path / "q.gguf", storage="Q4_1"))
    from converters.read.adapter import AdaptedTensorSource, LowRank

    adapted = AdaptedTensorSource(packed.tensors, {name: LowRank.__new__(LowRank)})
    assert (packed.tensors.stored_kind(name), adapted.stored_kind(name), adapted.stored(name)) == ("Q4_1", None, None)
    other = LAYERS.format(1, "self_attn.k_proj.weight")
    assert adapted.stored_kind(other) == "Q4_1"


REFUSED: dict[str, tuple[type[ToolkitError], Callable[[dict[str, Any]], object]]] = {
    "it is DoRA": (UnsupportedModelError, lambda config: config.update(use_dora=True)),
    "it carries whole modules": (UnsupportedModelError, lambda config: config.update(modules_to_save=["lm_head"])),
    "it carries trained biases": (UnsupportedModelError, lambda config: config.update(bias="all")),
    "its peft_type is LOHA": (UnsupportedModelError, lambda config: config.update(peft_type="LOHA")),
    "it began as 'pissa'": (UnsupportedModelError, lambda config: config.update(init_lora_weights="pissa")),
    "r must be between 1": (FormatError, lambda config: config.update(r=0)),
    "lora_alpha must be": (FormatError, lambda config: config.update(lora_alpha="x")),
    "which is no regular expression": (FormatError, lambda config: config.update(rank_pattern={"(": 2})),
    r"has shape \(4, 48\), base model and rank ask for \(8, 48\)": (FormatError, lambda config: config.update(r=8)),
    "was not made for tiny-base": (UsageError, lambda config: config.update(base_model_name_or_path="other/model")),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_no_plain_lora_for_this_base_is_refused_by_name(why: str, tmp_path: Path) -> None:
    kind, change = REFUSED[why]
    trained = Trained(tmp_path)
    trained.config(change)
    with pytest.raises(kind, match=why):
        apply_adapter(read_checkpoint(trained.base), trained.adapter)


def test_a_table_that_embedding_and_head_share_is_not_adapted(tmp_path: Path) -> None:
    trained = Trained(tmp_path, "llama-tied", target_modules=["embed_tokens"])
    with pytest.raises(UnsupportedModelError, match="it adapts model.embed_tokens, whose table"):
        apply_adapter(read_checkpoint(trained.base), trained.adapter)


def test_a_table_saved_with_the_adapter_must_be_the_bases_own(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    trained = Trained(tmp_path, "llama", target_modules=["lm_head"])
    tensors = load_file(trained.adapter / "adapter_model.safetensors")
    tensors["base_model.model.lm_head.base_layer.weight"][3, 3] += 0.5
    save_file(tensors, trained.adapter / "adapter_model.safetensors")
    with pytest.raises(UnsupportedModelError, match="it carries a lm_head of its own"):
        apply_adapter(read_checkpoint(trained.base), trained.adapter)


def test_an_adapter_of_another_architecture_does_not_fit(tmp_path: Path) -> None:
    trained = Trained(tmp_path, "llama", target_modules=["gate_proj"])
    other = save_hf(tiny_model("llama", num_hidden_layers=2), tmp_path / "short" / "tiny-base")
    with pytest.raises(FormatError, match="belongs to no matrix of the base model"):
        apply_adapter(read_checkpoint(other), trained.adapter)


def test_a_folder_without_an_adapter_is_refused(tmp_path: Path) -> None:
    base = read_checkpoint(save_hf(tiny_model("llama"), tmp_path / "tiny-base"))
    with pytest.raises(UsageError, match="there is no such folder"):
        apply_adapter(base, tmp_path / "nowhere")
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    (tmp_path / "pickled" / "adapter_model.bin").write_bytes(b"x")
    with pytest.raises(FormatError, match="adapter_model.bin is a pickle"):
        apply_adapter(base, tmp_path / "pickled")


def test_the_default_of_alpha_is_pefts(tmp_path: Path) -> None:
    import peft

    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    assert read_adapter_config(tmp_path).scale_of("x") == peft.LoraConfig().lora_alpha / 4


def test_the_command_merges_it(own_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained, out = Trained(own_folders), own_folders / "out"
    options = ["--to", "gguf", "--recipe", "fp32", "--context", "64", "--no-verify", "--out", str(out)]
    assert main([str(trained.base), "--adapter", str(trained.adapter), *options]) == 0, capsys.readouterr().err
    bundle = Bundle.open(out / "tiny-base-tuned-gguf-fp32")
    name = LAYERS.format(1, "self_attn.q_proj.weight")
    merged, base = read_checkpoint(bundle.entry_path).tensors.load(name), read_checkpoint(trained.base).tensors.load(name)
    np.testing.assert_allclose(merged, trained.merged.state_dict()[name].numpy(), rtol=0, atol=1e-6)
    assert np.abs(merged - base).max() > 1e-2, "an adapter left out would not show"


def test_the_command_names_a_base_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none"), "--adapter", str(tmp_path / "tuned"), "--to", "gguf"]) == 4
    assert "none does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("before", ["", "#encoders=none"])
def test_an_adapter_without_a_name_is_a_usage_error(before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Left out, the base would be converted as if it were the tuned model."""
    base = save_hf(tiny_model("llama"), tmp_path / "tiny-base")
    with pytest.raises(UsageError, match="no adapter is named"):
        read_checkpoint(f"{base}{before}#adapter=")
    assert main([str(base), "--adapter", "", "--to", "gguf", *(["--encoders", "none"] if before else [])]) == 2
    assert "no adapter is named" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["llama", "llama-table"])
def test_factors_are_read_once_a_matrix_whatever_its_blocks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trained(tmp_path, "llama", target_modules=["embed_tokens" if name == "llama-table" else "q_proj"])
    base = read_checkpoint(trained.base)
    merged = apply_adapter(base, trained.adapter)
    tensor = next(
        each for each in merged.tensors.names() if each.endswith("embed_tokens.weight" if name == "llama-table" else "q_proj.weight")
    )
    whole = merged.tensors.load(tensor)
    read: list[str] = []
    load = adapter._load
    monkeypatch.setattr(adapter, "_load", lambda stored: (read.append(stored.name), load(stored))[1])
    monkeypatch.setattr(hf_tensors, "BLOCK_BYTES", 4 * 3 * whole.shape[1])  # three rows a block
    blocks = list(merged.tensors.blocks(tensor))
    assert len(blocks) > 2 and len(read) == 2
    np.testing.assert_allclose(np.concatenate(blocks), whole, rtol=0, atol=1e-6)
    assert np.abs(whole - base.tensors.load(tensor)).max() > 1e-3
