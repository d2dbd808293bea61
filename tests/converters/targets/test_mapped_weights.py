"""Weights on disk: the model says the same, and its pages really leave memory."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from converters.targets.mapped_weights import kept_on_disk, map_weights
from tests.converters.tiny_checkpoints import logits, save_hf, tiny_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands back pages of a private mapping")


def test_a_mapped_model_answers_as_before_also_after_its_pages_are_gone(tmp_path: Path) -> None:
    model = tiny_model("llama-tied")
    before = logits(model)
    save_hf(model, tmp_path)
    other = tiny_model("llama-tied")
    for parameter in other.parameters():
        parameter.data.zero_()
    assert not (logits(other) == before).all()
    mapping = map_weights(other, tmp_path / "model.safetensors")
    with kept_on_disk(mapping):
        assert (logits(other) == before).all()
        time.sleep(0.5)
        assert (logits(other) == before).all()
    assert other.lm_head.weight.data_ptr() == other.model.embed_tokens.weight.data_ptr()


def test_pages_that_were_read_are_handed_back(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    model = torch.nn.Linear(4096, 4096, bias=False)  # 64 MiB
    save_file({"weight": model.weight.detach().clone()}, tmp_path / "model.safetensors")
    mapping = map_weights(model, tmp_path / "model.safetensors")
    assert mapping is not None
    model.weight.sum().item()
    before = resident_file_bytes()
    with kept_on_disk(mapping):
        for _ in range(100):
            time.sleep(0.1)
            if before - resident_file_bytes() > 50 * 2**20:
                break
        else:
            pytest.fail(f"{before - resident_file_bytes()} bytes were handed back, 64 MiB are mapped")


def test_a_parameter_the_file_does_not_hold_keeps_its_own_memory(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    model = torch.nn.Linear(8, 4)
    save_file({"weight": torch.zeros(4, 9), "bias": torch.ones(4)}, tmp_path / "model.safetensors")
    kept = model.weight.detach().clone()
    map_weights(model, tmp_path / "model.safetensors")
    assert torch.equal(model.weight, kept)
    assert torch.equal(model.bias, torch.ones(4))


def resident_file_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssFile"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssFile in /proc/self/status")
