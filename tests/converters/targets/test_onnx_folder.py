"""A damaged folder is refused before onnxruntime sees it, in three lines and with exit code 4."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from converters.targets.onnx_folder import read_folder, stored_weights
from converters.targets.onnx_run import OnnxModel
from tests.converters.targets.onnx_models import N_POSITIONS, TOKEN_IDS, built, onnx_checkpoint, written
from toolkit.errors import FormatError, ToolkitError


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An int8 model folder."""
    folder = tmp_path_factory.mktemp("folder")
    _, checkpoint = onnx_checkpoint("llama-tied", folder / "source")
    return written(checkpoint, built(checkpoint, folder / "graph"), "int8", folder / "model")


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "copy"))


def edit_config(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    data = json.loads((folder / "genai_config.json").read_text())
    edit(data)
    (folder / "genai_config.json").write_text(json.dumps(data))


def edit_graph(folder: Path, edit: Callable[[Any], Any]) -> None:
    import onnx

    model = onnx.load(folder / "model.onnx", load_external_data=False)
    edit(model.graph)
    onnx.save(model, folder / "model.onnx")


def set_entry(graph: Any, key: str, value: str) -> None:
    tensor = next(tensor for tensor in graph.initializer if tensor.external_data)
    next(entry for entry in tensor.external_data if entry.key == key).value = value


def test_a_sound_folder_says_what_it_is(sound: Path) -> None:
    files = read_folder(sound)
    assert (files.context_length, files.n_positions, files.vocab_size, files.stop_token_ids) == (N_POSITIONS, N_POSITIONS, 320, (261, 259))
    stored = stored_weights(files.graph_path)
    assert stored.rope_bytes == 2 * N_POSITIONS * 8 * 4
    assert stored.bits == sum(stored.bits_by_type.values())
    assert set(stored.bits_by_type) == {"uint8", "float16", "float32"}


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda folder: (folder / "genai_config.json").unlink(), "it is not there"),
    "no json": (lambda folder: (folder / "genai_config.json").write_text("{"), "Expecting"),
    "deep json": (lambda folder: (folder / "genai_config.json").write_text("[" * 9999), "nests more than"),
    "large config": (lambda folder: (folder / "genai_config.json").write_bytes(b" " * 2**21), "more than"),
    "no model": (lambda folder: (folder / "genai_config.json").write_text("{}"), "model"),
    "no decoder": (lambda folder: edit_config(folder, lambda data: data["model"].pop("decoder")), "decoder"),
    "a count of text": (lambda folder: edit_config(folder, lambda data: data["model"].update(vocab_size="320")), "'320' is no count"),
    "a graph elsewhere": (
        lambda folder: edit_config(folder, lambda data: data["model"]["decoder"].update(filename="../model.onnx")),
        "is no file of this folder",
    ),
    "no graph": (lambda folder: (folder / "model.onnx").unlink(), "it is not there"),
    "half a graph": (
        lambda folder: (folder / "model.onnx").write_bytes((folder / "model.onnx").read_bytes()[:5000]),
        "it is no ONNX graph",
    ),
    "no data": (lambda folder: (folder / "model.onnx.data").unlink(), "it is not there"),
    "half the data": (lambda folder: (folder / "model.onnx.data").write_bytes(b"\0" * 5000), "it has 5000 bytes"),
    "data elsewhere": (lambda folder: edit_graph(folder, lambda graph: set_entry(graph, "location", "/etc/passwd")), "is no file"),
    "a negative offset": (lambda folder: edit_graph(folder, lambda graph: set_entry(graph, "offset", "-4")), "does not say where"),
    "an offset past the end": (lambda folder: edit_graph(folder, lambda graph: set_entry(graph, "offset", str(2**40))), "reaches to"),
    "a length of another shape": (lambda folder: edit_graph(folder, lambda graph: set_entry(graph, "length", "4")), "are needed"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_before_the_runtime_sees_it(damage: str, folder: Path) -> None:
    do, said = DAMAGE[damage]
    do(folder)
    with pytest.raises(FormatError) as caught:
        OnnxModel(folder)
    assert said in caught.value.why
    assert caught.value.exit_code == 4
    assert str(caught.value).count("\n") == 2


def test_what_only_the_runtime_can_see_is_its_refusal_in_three_lines(folder: Path) -> None:
    edit_graph(folder, lambda graph: setattr(graph.node[-1], "op_type", "NoSuchOperator"))
    with pytest.raises(FormatError, match="cannot be opened by onnxruntime") as caught:
        OnnxModel(folder)
    assert "NoSuchOperator" in caught.value.why
    assert str(caught.value).count("\n") == 2


def test_a_window_longer_than_the_graph_holds_is_refused(sound: Path) -> None:
    with pytest.raises(ValueError, match=f"cache of {N_POSITIONS}"):
        list(OnnxModel(sound).score([1] * (N_POSITIONS + 1)))


def test_a_context_shorter_than_the_graph_is_scored_all_the_same(folder: Path) -> None:
    wanted = np.concatenate(list(OnnxModel(folder).score(TOKEN_IDS)))
    edit_config(folder, lambda data: (data["model"].update(context_length=64), data["search"].update(max_length=64)))
    assert np.array_equal(np.concatenate(list(OnnxModel(folder).score(TOKEN_IDS))), wanted)


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_flipped_byte_of_graph_or_config_escapes_as_another_error(sound: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "flipped"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    path = folder / data.draw(st.sampled_from(["genai_config.json", "model.onnx"]))
    content = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)):
        content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    try:
        stored_weights(read_folder(folder).graph_path)
    except ToolkitError as error:
        assert isinstance(error, FormatError)
