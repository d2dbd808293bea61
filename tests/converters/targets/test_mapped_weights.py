"""Weights on disk: the model says the same, and its pages really leave memory."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from converters.targets.mapped_weights import HAND_BACK_SECONDS, kept_on_disk, map_weights
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
        wait_until_handed_back(tmp_path / "model.safetensors")
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
    file = tmp_path / "model.safetensors"
    time.sleep(2 * HAND_BACK_SECONDS)
    assert resident_bytes(file) >= 64 * 2**20, "by itself the system takes none of them"
    with kept_on_disk(mapping):
        wait_until_handed_back(file)


def test_a_parameter_the_file_does_not_hold_keeps_its_own_memory(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    model = torch.nn.Linear(8, 4)
    save_file({"weight": torch.zeros(4, 9), "bias": torch.ones(4)}, tmp_path / "model.safetensors")
    kept = model.weight.detach().clone()
    map_weights(model, tmp_path / "model.safetensors")
    assert torch.equal(model.weight, kept)
    assert torch.equal(model.bias, torch.ones(4))


def wait_until_handed_back(file: Path) -> None:
    """Wait until none of a file's pages is in memory. The bound ends a hang; how long it takes is not judged."""
    deadline = time.monotonic() + 120
    while resident := resident_bytes(file):
        assert time.monotonic() < deadline, f"{resident} bytes are still in memory"
        time.sleep(0.02)


def resident_bytes(file: Path) -> int:
    """How much of a mapped file is in this process's memory (proc(5), /proc/pid/smaps)."""
    resident, is_file, is_mapped = 0, False, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split(maxsplit=1)[0].endswith(":"):  # the head of a mapping: addresses, permissions, path
            is_file = line.endswith(str(file))
            is_mapped = is_mapped or is_file
        elif is_file and line.startswith("Rss:"):
            resident += 1024 * int(line.split()[1])
    assert is_mapped, f"{file.name} is not mapped"
    return resident
