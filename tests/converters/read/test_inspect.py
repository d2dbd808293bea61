import os
from pathlib import Path

import numpy as np
import pytest

from converters.read import read_checkpoint
from converters.read.ctranslate2_tensors import Ctranslate2TensorSource
from converters.read.gguf_tensors import GgufFile
from converters.read.hf_tensors import HfTensorSource
from converters.read.inspect import inspect_source
from tests.converters.read.gguf_bytes import RawGguf, key, text
from tests.converters.read.test_encoders import multimodal
from tests.converters.read.test_packed_int4 import packed_directory
from tests.converters.tiny_checkpoints import save_hf, tiny_model, write_gguf
from tests.converters.tiny_gemmas import tiny_gemma
from tests.converters.tiny_whisper import SHAPE, tiny_whisper, write_ctranslate2
from toolkit.errors import FormatError, UnsupportedModelError, UsageError

KEYS = {
    "name", "format", "is_fetched", "source", "license", "quantization", "weights_bytes", "n_parameters", "targets", "unsupported",
    "sha256", "content_hash", "model_type", "architecture", "context_length", "kv_bytes_per_token", "dims", "chat", "chat_template",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspecting must not load a tensor."""

    def refuse(*_: object) -> None:
        raise AssertionError("a weight was loaded")

    for source in (GgufFile, HfTensorSource, Ctranslate2TensorSource):
        monkeypatch.setattr(source, "load", refuse)
        monkeypatch.setattr(source, "blocks", refuse)


@pytest.mark.parametrize("kind", ["gguf", "hf"])
def test_the_questions_of_acquisition_are_answered_alike_for_both_formats(kind: str, tmp_path: Path) -> None:
    model = tiny_model("llama")
    path = write_gguf(model, tmp_path / "tiny.gguf") if kind == "gguf" else save_hf(model, tmp_path / "tiny")
    facts = inspect_source(str(path))
    assert set(facts) == KEYS
    assert (facts["name"], facts["format"], facts["is_fetched"]) == ("tiny", kind, True)
    assert facts["license"] == {"id": "unknown", "url": None, "accepted_at": None}
    assert facts["quantization"] == {"name": "F32", "bits_per_weight": 32.0}
    assert "litert" in facts["targets"] and facts["unsupported"] is None
    assert facts["n_parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert facts["weights_bytes"] == 4 * facts["n_parameters"]
    assert facts["context_length"] == 128
    assert facts["kv_bytes_per_token"] == {"float32": 4 * 2 * 4 * 2 * 12, "float16": 2 * 2 * 4 * 2 * 12, "int8": 2 * 4 * 2 * 12}
    assert facts["dims"]["head_dim"] == 12
    assert facts["chat"] is False and facts["chat_template"] is None
    assert all(len(value) == 64 for value in facts["sha256"].values()) and facts["sha256"]


def test_a_model_that_is_not_supported_still_gets_its_facts_and_the_reason(tmp_path: Path) -> None:
    keys = [key("general.architecture", 8, text("gemma3n")), key("general.license", 8, text("gemma"))]
    path = tmp_path / "gemma-3n.gguf"
    path.write_bytes(RawGguf(keys=keys).build())
    facts = inspect_source(str(path))
    assert set(facts) == KEYS
    assert facts["targets"] == [] and "AltUp" in facts["unsupported"]["fix"]
    assert facts["license"]["id"] == "gemma" and facts["quantization"]["name"] == "F32" and facts["dims"] is None


def test_a_catalog_model_that_was_not_fetched_is_answered_without_a_download() -> None:
    facts = inspect_source("gemma-3-270m")
    assert set(facts) == KEYS
    assert facts["is_fetched"] is False
    assert facts["license"]["id"] == "gemma" and facts["license"]["url"]
    assert facts["dims"] is None and facts["targets"] is None


def test_damaged_and_unknown_sources_are_errors(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(FormatError):
        inspect_source(str(tmp_path / "bad.gguf"))
    with pytest.raises(UsageError):
        inspect_source("no-such-model-name")


def test_a_ctranslate2_whisper_is_described_like_any_other_source(tmp_path: Path) -> None:
    facts = inspect_source(str(write_ctranslate2(tiny_whisper(), tmp_path / "tiny")))
    assert set(facts) == KEYS
    assert (facts["format"], facts["model_type"], facts["targets"]) == ("ctranslate2", "whisper", ["litert", "onnx"])
    assert facts["quantization"] == {"name": "float16", "bits_per_weight": 16.0}
    assert (facts["context_length"], facts["dims"]["encoder_n_layers"], facts["dims"]["decoder_n_layers"]) == (40, 2, 3)
    assert facts["kv_bytes_per_token"]["float32"] == 4 * 2 * 3 * 48


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.bin"])
def test_a_pipe_in_the_folder_is_refused_instead_of_waited_for(tmp_path: Path, name: str) -> None:
    save_hf(tiny_model("llama-tied"), tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    for ask in (inspect_source, read_checkpoint):
        with pytest.raises(FormatError, match=f"no file\n  why: {name}"):
            ask(str(tmp_path))


@pytest.mark.parametrize("name", ["pipe", "pipe.gguf"])
def test_a_pipe_in_the_place_of_a_checkpoint_is_refused_instead_of_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    for ask in (inspect_source, read_checkpoint):
        with pytest.raises(UsageError, match=f"{name} is no file"):
            ask(str(tmp_path / name))


@pytest.mark.parametrize("kind", ["gemma3n", "gemma4"])
def test_keys_of_layers_that_share_them_are_left_aside_as_convert_does(kind: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = save_hf(tiny_gemma(kind), tmp_path / "tiny")
    plain = inspect_source(str(folder))
    unread = {"model.layers.5.self_attn.k_proj.weight": np.ones((32, 64), np.float16)}
    save_file(load_file(folder / "model.safetensors") | unread, folder / "model.safetensors", metadata={"format": "pt"})
    facts, checkpoint = inspect_source(str(folder)), read_checkpoint(folder)
    assert "litert" in facts["targets"] and facts["unsupported"] is None
    assert (facts["weights_bytes"], facts["quantization"]["name"]) == (plain["weights_bytes"], checkpoint.quantization.name)
    save_file(load_file(folder / "model.safetensors") | {"model.layers.9.x": np.ones(3)}, folder / "model.safetensors")
    with pytest.raises(FormatError, match="1 unknown"):
        inspect_source(str(folder))


@pytest.mark.parametrize("kind", ["gemma3n", "gemma4"])
def test_a_model_that_sees_is_refused_with_the_option_that_takes_its_text_model(kind: str, tmp_path: Path) -> None:
    _, folder = multimodal(kind, tmp_path / "seeing")
    facts = inspect_source(str(folder))
    assert set(facts) == KEYS
    assert facts["targets"] == [] and "--encoders none" in facts["unsupported"]["fix"]
    assert facts["model_type"] == f"{kind}_text"


def test_an_int8_whisper_is_refused_as_convert_refuses_it(tmp_path: Path) -> None:
    linear, width = "encoder/layer_0/ffn/linear_1/weight", SHAPE["d_model"]
    codes = {linear: np.zeros((width, SHAPE["encoder_ffn_dim"]), np.int8), f"{linear}_scale": np.ones(width, np.float32)}
    folder = write_ctranslate2(tiny_whisper(), tmp_path / "tiny", changes=codes)
    facts = inspect_source(str(folder))
    with pytest.raises(UnsupportedModelError) as refusal:
        read_checkpoint(folder)
    assert facts["targets"] == [] and facts["model_type"] == "whisper" and refusal.value.what == "model.bin stores weights as int8"
    assert (facts["unsupported"]["what"], facts["unsupported"]["why"]) == (refusal.value.what, refusal.value.why)
    (tmp_path / "cut").mkdir()
    with pytest.raises(FormatError, match="1 missing, first encoder/conv1/bias"):
        inspect_source(str(write_ctranslate2(tiny_whisper(), tmp_path / "cut" / "tiny", changes={"encoder/conv1/bias": None})))


def test_a_packed_checkpoint_is_judged_by_its_headers_alone(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder, _ = packed_directory(tmp_path, "gptq", "llama-tied")
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]}, folder / "model.safetensors")
    assert "litert" in inspect_source(str(folder))["targets"]
    save_file(weights | {"model.layers.0.mlp.up_proj.qzeros": np.zeros((1, 1), np.int32)}, folder / "model.safetensors")
    with pytest.raises(FormatError, match="qzeros is I32"):
        inspect_source(str(folder))
