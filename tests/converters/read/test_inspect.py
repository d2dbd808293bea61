import os
from pathlib import Path

import pytest

from converters.read.gguf_tensors import GgufFile
from converters.read.hf_tensors import HfTensorSource
from converters.read.inspect import inspect_source
from tests.converters.read.gguf_bytes import RawGguf, key, text
from tests.converters.tiny_checkpoints import save_hf, tiny_model, write_gguf
from toolkit.errors import FormatError, UsageError

KEYS = {
    "name", "format", "is_fetched", "source", "license", "quantization", "weights_bytes", "n_parameters", "targets", "unsupported",
    "sha256", "content_hash", "model_type", "architecture", "context_length", "kv_bytes_per_token", "dims", "chat", "chat_template",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspecting must not load a tensor."""

    def refuse(*_: object) -> None:
        raise AssertionError("a weight was loaded")

    for source in (GgufFile, HfTensorSource):
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
    from tests.converters.tiny_whisper import tiny_whisper, write_ctranslate2

    facts = inspect_source(str(write_ctranslate2(tiny_whisper(), tmp_path / "tiny")))
    assert set(facts) == KEYS
    assert (facts["format"], facts["model_type"], facts["targets"]) == ("ctranslate2", "whisper", ["litert"])
    assert facts["quantization"] == {"name": "float16", "bits_per_weight": 16.0}
    assert (facts["context_length"], facts["dims"]["encoder_n_layers"], facts["dims"]["decoder_n_layers"]) == (40, 2, 3)
    assert facts["kv_bytes_per_token"]["float32"] == 4 * 2 * 3 * 48


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_in_the_folder_is_refused_instead_of_waited_for(tmp_path: Path, name: str) -> None:
    save_hf(tiny_model("llama-tied"), tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(FormatError, match="no file"):
        inspect_source(str(tmp_path))
