"""Hugging Face directories: what is read, and every way one can be damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.read import hf_tensors, read_checkpoint
from converters.read.hf_tensors import HfTensorSource
from tests.converters.tiny_checkpoints import load_hf, logits, save_hf, tiny_model
from toolkit.errors import FormatError, ToolkitError, UnsupportedModelError, UsageError


@pytest.fixture(scope="module")
def llama_model() -> Any:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def _sound(llama_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_hf(llama_model, tmp_path_factory.mktemp("sound") / "tiny-llama")


@pytest.fixture(scope="module")
def _sharded(llama_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_hf(llama_model, tmp_path_factory.mktemp("sharded") / "tiny-llama", max_shard_size="40KB")


@pytest.fixture
def sound(_sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(_sound, tmp_path / "tiny-llama")


@pytest.fixture
def sharded(_sharded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(_sharded, tmp_path / "tiny-llama")


def edit_json(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    data = json.loads(path.read_text("utf-8"))
    edit(data)
    path.write_text(json.dumps(data), "utf-8")


def test_shards_are_read_as_one_checkpoint(sharded: Path, llama_model: Any, tmp_path: Path) -> None:
    assert len(list(sharded.glob("*.safetensors"))) > 2
    checkpoint = read_checkpoint(sharded)
    checkpoint.write_hf(tmp_path / "out")
    np.testing.assert_array_equal(logits(load_hf(tmp_path / "out")), logits(llama_model))
    assert set(checkpoint.source.sha256) >= {path.name for path in sharded.glob("*.safetensors*")} | {"config.json", "tokenizer.json"}


@pytest.mark.parametrize(("dtype", "name", "bits"), [("bfloat16", "BF16", 16.0), ("float16", "F16", 16.0), ("float32", "F32", 32.0)])
def test_each_float_type_is_read_exactly(dtype: str, name: str, bits: float, tmp_path: Path) -> None:
    import torch

    model = tiny_model("llama").to(getattr(torch, dtype))
    checkpoint = read_checkpoint(save_hf(model, tmp_path / "source"))
    assert (checkpoint.quantization.name, checkpoint.quantization.bits_per_weight) == (name, bits)
    for tensor_name, parameter in model.state_dict().items():
        loaded = checkpoint.tensors.load(tensor_name)
        assert loaded.dtype == np.float32
        np.testing.assert_array_equal(loaded, parameter.float().numpy())


def test_stop_tokens_come_from_generation_config_then_config_then_the_vocabulary(sound: Path) -> None:
    (sound / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    assert read_checkpoint(sound).spec.eos_token_ids == (5, 2, 261, 259)
    edit_json(sound / "config.json", lambda config: config.update(eos_token_id=[2, 9]))
    assert read_checkpoint(sound).spec.eos_token_ids == (5, 2, 9, 261, 259)


def test_all_stop_tokens_are_written_where_transformers_looks(sound: Path, tmp_path: Path) -> None:
    (sound / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    read_checkpoint(sound).write_hf(tmp_path / "out")
    model = load_hf(tmp_path / "out")
    assert model.generation_config.eos_token_id == [5, 2, 261, 259]
    assert model.config.eos_token_id == [5, 2, 261, 259]


@pytest.mark.parametrize("place", ["jinja", "config", "list"])
def test_the_chat_template_is_found_in_each_place_and_written_once(place: str, sound: Path, tmp_path: Path) -> None:
    template = "{{ messages }}"
    if place == "jinja":
        (sound / "chat_template.jinja").write_text(template)
    else:
        value = template if place == "config" else [{"name": "rag", "template": "no"}, {"name": "default", "template": template}]
        edit_json(sound / "tokenizer_config.json", lambda config: config.update(chat_template=value))
    checkpoint = read_checkpoint(sound)
    assert checkpoint.chat_template == template
    checkpoint.write_hf(tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == template
    assert "chat_template" not in json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())


def test_a_base_model_has_no_template_and_gets_none(sound: Path, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(sound)
    checkpoint.write_hf(tmp_path / "out")
    assert checkpoint.chat_template is None
    assert not (tmp_path / "out" / "chat_template.jinja").exists()


@pytest.mark.parametrize("place", ["jinja", "config"])
@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_template_is_none(blank: str, place: str, sound: Path) -> None:
    if place == "jinja":
        (sound / "chat_template.jinja").write_text(blank)
    else:
        edit_json(sound / "tokenizer_config.json", lambda config: config.update(chat_template=blank))
    assert read_checkpoint(sound).chat_template is None


def test_the_licence_is_what_the_readme_states(sound: Path) -> None:
    assert read_checkpoint(sound).license.id == "unknown"
    (sound / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\nlicense: other\n")
    assert read_checkpoint(sound).license.id.lower() == "apache-2.0"
    (sound / "README.md").write_text("license: mit\n")
    assert read_checkpoint(sound).license.id == "unknown", "only front matter counts"


def test_gemma_terms_must_be_accepted_for_local_files_too(sound: Path) -> None:
    (sound / "README.md").write_text("---\nlicense: gemma\n---\n")
    with pytest.raises(UsageError, match="give --accept-license gemma once"):
        read_checkpoint(sound)
    assert read_checkpoint(sound, accept_license="gemma").license.accepted_at
    assert read_checkpoint(sound).license.accepted_at, "once is enough"


def test_a_repeated_tied_head_is_dropped_and_another_one_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    directory = save_hf(tiny_model("llama-tied"), tmp_path / "tied")
    weights = load_file(directory / "model.safetensors")
    assert "lm_head.weight" not in weights
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    save_file(weights, directory / "model.safetensors")
    assert "lm_head.weight" not in read_checkpoint(directory).tensors.names()
    weights["lm_head.weight"][7, 3] += 1
    save_file(weights, directory / "model.safetensors")
    with pytest.raises(FormatError, match="contradicts itself about its output layer"):
        read_checkpoint(directory)


def test_an_untied_model_without_lm_head_is_refused_by_name(tmp_path: Path) -> None:
    directory = save_hf(tiny_model("llama-tied"), tmp_path / "tied")
    edit_json(directory / "config.json", lambda config: config.update(tie_word_embeddings=False))
    with pytest.raises(FormatError, match=r"has no lm_head\.weight(.|\n)*set tie_word_embeddings to true"):
        read_checkpoint(directory)


def multimodal(tmp_path: Path, prefix: str, head: str) -> tuple[Any, Path]:
    """A tiny Gemma 3 as the multimodal checkpoints store it: text under a prefix, vision beside it."""
    from safetensors.numpy import load_file, save_file

    model = tiny_model("gemma3")
    directory = save_hf(model, tmp_path / "multimodal")
    text = load_file(directory / "model.safetensors")
    renamed = {(prefix + name.removeprefix("model.") if name.startswith("model.") else head + name): text[name] for name in text}
    renamed["vision_tower.embeddings.weight"] = np.zeros((2, 2), np.float32)
    renamed["multi_modal_projector.weight"] = np.zeros((2, 2), np.float32)
    save_file(renamed, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    outer = {"model_type": "gemma3", "text_config": config, "vision_config": {}, "eos_token_id": [2, 7]}
    (directory / "config.json").write_text(json.dumps(outer))
    return model, directory


@pytest.mark.parametrize(("prefix", "head"), [("language_model.model.", "language_model."), ("model.language_model.", "")])
def test_the_text_part_of_a_multimodal_gemma3_is_read(prefix: str, head: str, tmp_path: Path) -> None:
    model, directory = multimodal(tmp_path, prefix, head)
    checkpoint = read_checkpoint(directory)
    assert checkpoint.spec.model_type == "gemma3_text"
    checkpoint.write_hf(tmp_path / "out")
    np.testing.assert_array_equal(logits(load_hf(tmp_path / "out")), logits(model))


def test_a_multimodal_gemma3_without_its_text_tensors_is_refused(tmp_path: Path) -> None:
    _, directory = multimodal(tmp_path, "some_other.", "")
    with pytest.raises(FormatError, match="does not hold the tensors"):
        read_checkpoint(directory)


def test_blocks_and_load_agree(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_tensors, "BLOCK_BYTES", 4 * 32 * 50)
    tensors = read_checkpoint(sound).tensors
    assert len(list(tensors.blocks("model.embed_tokens.weight"))) == 7
    for name in tensors.names():
        np.testing.assert_array_equal(np.concatenate(list(tensors.blocks(name))).reshape(tensors.shape(name)), tensors.load(name))


def damage_weights(path: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(path / "model.safetensors")
    change(weights)
    save_file(weights, path / "model.safetensors")


Q = "model.layers.1.self_attn.q_proj.weight"
DAMAGE: dict[str, tuple[Callable[[Path], Any], type[ToolkitError], str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), FormatError, "config.json cannot be read"),
    "empty config": (lambda d: (d / "config.json").write_text(""), FormatError, "config.json is not sound"),
    "no model_type": (lambda d: edit_json(d / "config.json", lambda c: c.pop("model_type")), FormatError, "model_type is missing"),
    "a model_type of no text": (lambda d: edit_json(d / "config.json", lambda c: c.update(model_type=7)), FormatError, "must be text"),
    "unknown model_type": (
        lambda d: edit_json(d / "config.json", lambda c: c.update(model_type="bert")),
        UnsupportedModelError,
        "model_type 'bert' is not supported",
    ),
    "wrong generation stops": (
        lambda d: (d / "generation_config.json").write_text('{"eos_token_id": "x"}'),
        FormatError,
        "generation_config.json does not describe",
    ),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), FormatError, "holds no weights"),
    "empty weights": (lambda d: (d / "model.safetensors").write_bytes(b""), FormatError, "it has 0 bytes"),
    "truncated weights": (
        lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-100]),
        FormatError,
        "its tensors end at byte",
    ),
    "a missing tensor": (lambda d: damage_weights(d, lambda w: w.pop(Q)), FormatError, f"1 missing, first {Q}"),
    "an unknown tensor": (lambda d: damage_weights(d, lambda w: w.update(x=w[Q])), FormatError, "1 unknown, first x"),
    "a transposed tensor": (
        lambda d: damage_weights(d, lambda w: w.update({Q: np.ascontiguousarray(w[Q].T)})),
        FormatError,
        r"has shape \(32, 48\), config.json asks for \(48, 32\)",
    ),
    "integers for weights": (
        lambda d: damage_weights(d, lambda w: w.update({Q: w[Q].astype(np.int32)})),
        UnsupportedModelError,
        "stores weights as I32",
    ),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), FormatError, "has no tokenizer.json"),
    "pickled weights only": (
        lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"),
        UnsupportedModelError,
        "pickled weights only",
    ),
    "an adapter": (
        lambda d: (d / "model.safetensors").rename(d / "adapter_config.json"),
        UnsupportedModelError,
        "is an adapter, not a model",
    ),
    "gptq": (
        lambda d: edit_json(d / "config.json", lambda c: c.update(quantization_config={"quant_method": "gptq", "bits": 8})),
        UnsupportedModelError,
        r"already quantized \(gptq\)",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_directory_is_refused_with_its_reason(case: str, sound: Path) -> None:
    damage, error, reason = DAMAGE[case]
    damage(sound)
    with pytest.raises(error, match=reason) as raised:
        read_checkpoint(sound)
    assert len(str(raised.value).splitlines()) == 3
    assert raised.value.exit_code == 4


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", [Q, "model.norm.weight"])
def test_values_that_are_not_finite_are_refused_when_loaded_and_nothing_is_published(
    bad: float, name: str, sound: Path, tmp_path: Path
) -> None:
    damage_weights(sound, lambda weights: weights[name].reshape(-1).__setitem__(-1, bad))
    checkpoint = read_checkpoint(sound)
    with pytest.raises(FormatError, match=f"{name} has NaN or infinite values"):
        checkpoint.tensors.load(name)
    with pytest.raises(FormatError, match="damaged weights"):
        checkpoint.write_hf(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


INDEX_DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no map": (lambda index: index.pop("weight_map"), "weight_map is missing or empty"),
    "an empty map": (lambda index: index.update(weight_map={}), "weight_map is missing or empty"),
    "a path upwards": (lambda index: index["weight_map"].update(x="../model.safetensors"), "no plain .safetensors name"),
    "an absolute path": (lambda index: index["weight_map"].update(x="/etc/model.safetensors"), "no plain .safetensors name"),
    "a windows path": (lambda index: index["weight_map"].update(x="..\\model.safetensors"), "no plain .safetensors name"),
    "another kind of file": (lambda index: index["weight_map"].update(x="config.json"), "no plain .safetensors name"),
    "a number": (lambda index: index["weight_map"].update(x=3), "no plain .safetensors name"),
    "a missing shard": (lambda index: index["weight_map"].update(x="model-9.safetensors"), "model-9.safetensors cannot be read"),
    "a tensor too many": (
        lambda index: index["weight_map"].update(x=next(iter(index["weight_map"].values()))),
        "1 tensors are not where it says, first x",
    ),
    "a tensor too few": (lambda index: index["weight_map"].pop(Q), f"1 tensors are not where it says, first {Q}"),
}


@pytest.mark.parametrize("case", INDEX_DAMAGE)
def test_a_damaged_index_is_refused_with_its_reason(case: str, sharded: Path) -> None:
    damage, reason = INDEX_DAMAGE[case]
    edit_json(sharded / "model.safetensors.index.json", damage)
    with pytest.raises(FormatError, match=reason):
        read_checkpoint(sharded)


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    shards = sorted(sharded.glob("*.safetensors"))
    shutil.copy(shards[0], shards[1])
    with pytest.raises(FormatError, match="is also in"):
        read_checkpoint(sharded)


TOKENIZER_DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], type[ToolkitError], str]] = {
    "no model": (lambda t: t.pop("model"), FormatError, "no model with a vocab"),
    "an id past the embeddings": (lambda t: t["model"]["vocab"].update(zz=320), FormatError, "outside the 320 rows"),
    "a negative id": (lambda t: t["model"]["vocab"].update(zz=-1), FormatError, "outside the 320 rows"),
    "an id of no number": (lambda t: t["model"]["vocab"].update(zz="1"), FormatError, "outside the 320 rows"),
    "an id twice": (lambda t: t["model"]["vocab"].update(zz=5), FormatError, "1 token ids are given twice"),
    "no merges": (lambda t: t["model"].pop("merges"), FormatError, "no merges"),
    "a merge into nothing": (lambda t: t["model"]["merges"].append(["q", "q"]), FormatError, "does not join two tokens"),
    "a merge of three": (lambda t: t["model"]["merges"].append(["t", "h", "e"]), FormatError, "does not join two tokens"),
    "an added token of no text": (lambda t: t["added_tokens"].append({"id": 300}), FormatError, "has no content or id"),
    "a word-level tokenizer": (lambda t: t["model"].update(type="WordLevel"), UnsupportedModelError, "type WordLevel"),
    "no splitting rule": (lambda t: t.update(pre_tokenizer=None), UnsupportedModelError, "of no kind this reads"),
    "an unknown part": (lambda t: t.update(decoder={"type": "Nonsense"}), FormatError, "the tokenizers library refuses it"),
}


@pytest.mark.parametrize("case", TOKENIZER_DAMAGE)
def test_a_damaged_tokenizer_is_refused_with_its_reason(case: str, sound: Path) -> None:
    damage, error, reason = TOKENIZER_DAMAGE[case]
    edit_json(sound / "tokenizer.json", damage)
    with pytest.raises(error, match=reason):
        read_checkpoint(sound)


def test_half_of_a_character_in_a_template_is_refused(sound: Path) -> None:
    (sound / "tokenizer_config.json").write_text('{"chat_template": "\\ud800"}')
    with pytest.raises(FormatError, match="half of a character"):
        read_checkpoint(sound)


def test_a_file_that_shrinks_after_it_was_checked_is_noticed(sound: Path) -> None:
    tensors = read_checkpoint(sound).tensors
    assert isinstance(tensors, HfTensorSource)
    content = (sound / "model.safetensors").read_bytes()
    (sound / "model.safetensors").write_bytes(content[:2000])
    with pytest.raises(FormatError, match="ended while it was read"):
        for name in tensors.names():
            tensors.load(name)


def test_the_content_hash_changes_with_any_file_and_not_with_the_name(sound: Path) -> None:
    first = read_checkpoint(sound)
    moved = sound.rename(sound.with_name("another-name"))
    second = read_checkpoint(moved)
    assert first.content_hash == second.content_hash and first.name != second.name
    (moved / "generation_config.json").write_text('{"eos_token_id": 2, "temperature": 0.5}')
    assert read_checkpoint(moved).content_hash != first.content_hash


def test_a_spec_in_another_dtype_is_written_as_asked(sound: Path, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(sound)
    replace(checkpoint, name="x").write_hf(tmp_path / "out", dtype="bfloat16")
    assert read_checkpoint(tmp_path / "out").quantization.name == "BF16"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_pipe_in_the_folder_is_refused_instead_of_waited_for(tmp_path: Path, name: str) -> None:
    save_hf(tiny_model("llama-tied"), tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(FormatError, match="no file") as caught:
        read_checkpoint(tmp_path)
    assert name in caught.value.why


def test_an_activation_nobody_knows_is_refused_before_any_work(tmp_path: Path) -> None:
    save_hf(tiny_model("llama-tied"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "abc"}))
    with pytest.raises(FormatError, match="hidden_act"):
        read_checkpoint(tmp_path)
