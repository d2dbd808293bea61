"""The tiny Whisper in sherpa-onnx itself: it opens what we write, and says so when it could not use it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from converters.recipe import load_recipe
from converters.targets import onnx_whisper_sherpa
from converters.targets.base import ConvertOptions
from converters.targets.onnx_whisper import TARGET
from converters.targets.onnx_whisper_files import DECODER_NAME, ENCODER_NAME
from converters.targets.onnx_whisper_sherpa import opened_by
from tests.converters.targets.onnx_whispers import OnnxWhisper, onnx_whisper
from toolkit.errors import FidelityError

onnx: Any = pytest.importorskip("onnx", reason="pip install 'ondevice-toolkit[convert,onnx]'")
OPTIONS = ConvertOptions(context_length=40, is_verified=False)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> OnnxWhisper:
    return onnx_whisper(tmp_path_factory.mktemp("source"))


def bundle(whisper: OnnxWhisper, recipe: str, folder: Path) -> Path:
    """The files of a bundle."""
    place = folder / "bundle"
    place.mkdir()
    TARGET.assemble(whisper.checkpoint, whisper.write(recipe, folder / "written"), load_recipe(recipe), OPTIONS, place)
    return place


def without_sizes(model: Any) -> None:
    del model.metadata_props[:]


def of_fixed_frames(model: Any) -> None:
    """A whole window or nothing: what an export with fixed shapes comes to."""
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 100


def too_short(model: Any) -> None:
    """A graph that opens and fails: too short a table of positions."""
    table = next(tensor for tensor in model.graph.initializer if tensor.name == "model.encoder.embed_positions.weight")
    table.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(table)[:5], table.name))


@pytest.mark.parametrize("recipe", ["fp32", "fp16", "int8", "int4-g32"])
def test_it_opens_and_runs_every_recipe(recipe: str, whisper: OnnxWhisper, tmp_path: Path) -> None:
    sherpa_onnx = pytest.importorskip("sherpa_onnx", reason="pip install 'ondevice-toolkit[speech]'")
    assert opened_by(bundle(whisper, recipe, tmp_path), whisper.checkpoint.spec.n_frames) == {"sherpa-onnx": sherpa_onnx.__version__}


@pytest.mark.parametrize(("change", "why"), [(without_sizes, "n_mels"), (of_fixed_frames, "dimensions"), (too_short, "broadcast")])
def test_an_encoder_that_it_cannot_use_is_no_bundle(change: Callable[[Any], None], why: str, whisper: OnnxWhisper, tmp_path: Path) -> None:
    """Must-fail twins; without our look at what it prints, the last two would be an empty text."""
    pytest.importorskip("sherpa_onnx", reason="pip install 'ondevice-toolkit[speech]'")
    place = bundle(whisper, "fp32", tmp_path)
    model = onnx.load(place / ENCODER_NAME)
    change(model)
    (place / ENCODER_NAME).unlink()  # a hard link to what was written
    onnx.save(model, place / ENCODER_NAME)
    with pytest.raises(FidelityError, match=f"sherpa-onnx cannot use what was written\n.*{why}") as caught:
        opened_by(place, whisper.checkpoint.spec.n_frames)
    assert caught.value.exit_code == 6


def test_a_missing_graph_is_no_bundle(whisper: OnnxWhisper, tmp_path: Path) -> None:
    pytest.importorskip("sherpa_onnx", reason="pip install 'ondevice-toolkit[speech]'")
    place = bundle(whisper, "fp32", tmp_path)
    (place / DECODER_NAME).unlink()
    with pytest.raises(FidelityError, match="sherpa-onnx cannot use.*\n.*decoder.onnx failed"):
        opened_by(place, whisper.checkpoint.spec.n_frames)


def test_nothing_is_claimed_where_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_whisper_sherpa, "find_spec", lambda name: None)
    assert opened_by(tmp_path, 100) == {}
