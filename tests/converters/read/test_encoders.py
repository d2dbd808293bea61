"""Checkpoints that see and hear: refused, unless their text model alone is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.read import read_checkpoint
from tests.converters.tiny_checkpoints import logits, save_hf
from tests.converters.tiny_gemmas import tiny_gemma
from toolkit.errors import FormatError, UnsupportedModelError

PARTS = ("vision_tower", "audio_tower", "embed_vision", "embed_audio")


def multimodal(kind: str, folder: Path) -> tuple[Any, Path]:
    """The text model, and a directory named and nested as the multimodal checkpoint has it, with a tensor of each other part."""
    from safetensors.numpy import load_file, save_file

    model = tiny_gemma(kind)
    save_hf(model, folder)
    text = json.loads((folder / "config.json").read_text("utf-8"))
    nested = {"model_type": kind, "text_config": text, "vision_config": {"model_type": f"{kind}_vision"}, "eos_token_id": [2, 3]}
    (folder / "config.json").write_text(json.dumps(nested), "utf-8")
    weights = load_file(folder / "model.safetensors")
    named = {name.replace("model.", "model.language_model.", 1): value for name, value in weights.items()}
    others = {f"model.{part}.layers.0.weight": np.ones((4, 3), np.float32) for part in PARTS}
    save_file(named | others, folder / "model.safetensors")
    return model, folder


@pytest.mark.parametrize("kind", ["gemma3n", "gemma4"])
def test_a_multimodal_checkpoint_is_refused_with_the_option_that_takes_its_text_model(kind: str, tmp_path: Path) -> None:
    _, folder = multimodal(kind, tmp_path / "seeing")
    with pytest.raises(UnsupportedModelError, match=f"seeing is a {kind} with vision and audio parts(.|\n)*--encoders none"):
        read_checkpoint(folder)


@pytest.mark.parametrize("kind", ["gemma3n", "gemma4"])
def test_the_text_model_alone_answers_like_the_original_and_the_rest_is_counted(kind: str, tmp_path: Path) -> None:
    from tests.converters.tiny_checkpoints import load_hf

    model, folder = multimodal(kind, tmp_path / "seeing")
    checkpoint = read_checkpoint(f"{folder}#encoders=none")
    assert checkpoint.left_out == dict.fromkeys(PARTS, 1)
    assert checkpoint.spec.eos_token_ids[:1] == (2,)
    checkpoint.write_hf(tmp_path / "out")
    np.testing.assert_array_equal(logits(load_hf(tmp_path / "out")), logits(model))
    assert read_checkpoint(checkpoint.source.uri).content_hash == checkpoint.content_hash, "the manifest's source leads back to it"


def test_a_part_nobody_knows_is_not_left_out(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    _, folder = multimodal("gemma4", tmp_path / "seeing")
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"model.smell_tower.weight": np.ones((2, 2), np.float32)}, folder / "model.safetensors")
    with pytest.raises(FormatError, match=r"1 unknown, first model\.smell_tower"):
        read_checkpoint(f"{folder}#encoders=none")


def test_a_text_model_has_nothing_to_leave_out(tmp_path: Path) -> None:
    folder = save_hf(tiny_gemma("gemma4"), tmp_path / "source")
    checkpoint = read_checkpoint(f"{folder}#encoders=none")
    assert checkpoint.left_out == {}
    assert checkpoint.source.uri == str(folder)
