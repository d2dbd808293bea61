"""Which reader a source gets, and what it is called."""

from pathlib import Path

import pytest

from converters.read import READERS, local_path, model_path, read_checkpoint, reader_kind
from converters.read.inspect import inspect_source
from converters.read.names import checkpoint_name
from tests.converters.tiny_checkpoints import tiny_model, write_gguf
from toolkit.errors import FormatError, ToolkitError, UsageError


def test_every_registered_reader_can_be_imported_and_has_the_contracts_parameters() -> None:
    import importlib
    import inspect

    own = {kind: set[str]() for kind in READERS} | {"hf": {"leaves_out_encoders"}}
    for kind, (module, function) in READERS.items():
        parameters = inspect.signature(getattr(importlib.import_module(module), function)).parameters.values()
        assert [each.name for each in parameters][:4] == ["path", "name", "source", "license"]
        assert {each.name for each in list(parameters)[4:]} == own[kind]
        assert all(each.default is not inspect.Parameter.empty for each in list(parameters)[1:]), "a reader's own options are optional"


@pytest.mark.parametrize(("stem", "name"), [
    ("SmolLM2-135M-Instruct.Q4_1", "smollm2-135m-instruct"),
    ("gemma-3-270m-q4_k_m", "gemma-3-270m"),
    ("Llama-3.2-1B-BF16", "llama-3.2-1b"),
    ("Model IQ4_XS", "model"),
    ("Model.IQ4_XS", "model"),
    ("日本語", "model"),
    ("../..", "model"),
])  # fmt: skip
def test_names_are_bundle_safe_and_say_nothing_about_storage(stem: str, name: str) -> None:
    assert checkpoint_name(stem) == name


def test_a_gguf_file_is_known_by_its_magic_whatever_its_name(tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "Tiny-Llama.F32.gguf")
    assert read_checkpoint(path).name == "tiny-llama"
    assert read_checkpoint(path.rename(tmp_path / "sha256-blob")).name == "sha256-blob"
    assert read_checkpoint(tmp_path / "sha256-blob", name="mine").name == "mine"


def test_a_folder_with_one_gguf_file_stands_for_it_and_two_must_be_named(tmp_path: Path) -> None:
    write_gguf(tiny_model("llama"), tmp_path / "one.gguf")
    assert read_checkpoint(tmp_path).spec.model_type == "llama"
    (tmp_path / "two.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match="holds 2 GGUF files"):
        model_path(tmp_path)


def test_other_files_are_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x07")
    with pytest.raises(UsageError, match="neither a Hugging Face folder nor a GGUF file"):
        reader_kind(tmp_path / "model.onnx")


def test_an_empty_folder_and_a_missing_path_are_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="config.json cannot be read"):
        read_checkpoint(tmp_path)
    with pytest.raises(ToolkitError, match="absent"):
        read_checkpoint(tmp_path / "absent.gguf")


def test_the_licence_of_a_gguf_file_is_what_its_header_states(tmp_path: Path) -> None:
    stated = {"general.license": "apache-2.0", "general.license.link": "https://example.org/terms"}
    license_record = read_checkpoint(write_gguf(tiny_model("llama"), tmp_path / "a.gguf", metadata=stated)).license
    assert license_record.id.lower() == "apache-2.0" and license_record.url
    assert read_checkpoint(write_gguf(tiny_model("llama"), tmp_path / "b.gguf")).license.id == "unknown"
    gemma = write_gguf(tiny_model("gemma"), tmp_path / "c.gguf", metadata={"general.license": "gemma"})
    with pytest.raises(UsageError, match="--accept-license gemma"):
        read_checkpoint(gemma)
    assert read_checkpoint(gemma, accept_license="gemma").license.accepted_at


def test_a_chat_template_in_a_gguf_file_is_read_and_an_empty_one_is_none(tmp_path: Path) -> None:
    model = tiny_model("llama")
    for template, want in (("{{ messages }}", "{{ messages }}"), ("  ", None)):
        path = write_gguf(model, tmp_path / "t.gguf", metadata={"tokenizer.chat_template": template})
        assert read_checkpoint(path).chat_template == want
    assert read_checkpoint(write_gguf(model, tmp_path / "t.gguf")).chat_template is None


@pytest.mark.parametrize(("storage", "name", "bits"), [("F32", "F32", 32.0), ("F16", "F16", 16.0)])
def test_quantization_is_measured_on_the_tensors(storage: str, name: str, bits: float, tmp_path: Path) -> None:
    info = read_checkpoint(write_gguf(tiny_model("llama"), tmp_path / "t.gguf", storage=storage)).quantization
    assert info.name == name
    assert info.bits_per_weight == pytest.approx(bits, rel=0.02)


@pytest.mark.parametrize("storage", ["Q8_0", "Q4_0", "Q4_1", "BF16"])
def test_a_quantized_file_gives_exactly_the_values_gguf_py_reads(storage: str, tmp_path: Path) -> None:
    import gguf
    import numpy as np

    model = tiny_model("qwen3", hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    checkpoint = read_checkpoint(write_gguf(model, tmp_path / "t.gguf", storage=storage))
    kind = gguf.GGMLQuantizationType[storage]
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"):
        stored = gguf.quants.quantize(model.state_dict()[name].numpy(), kind)
        np.testing.assert_array_equal(checkpoint.tensors.load(name), gguf.quants.dequantize(stored, kind))


def test_no_source_at_all_is_no_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for ask in (read_checkpoint, inspect_source):
        with pytest.raises(UsageError, match="no source is named"):
            ask("")
    assert local_path(".") == Path(".")
