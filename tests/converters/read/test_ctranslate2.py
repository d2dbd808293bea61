from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.read import read_checkpoint
from converters.read.ctranslate2 import read_ctranslate2
from converters.read.ctranslate2_tensors import place_of
from converters.whisper_spec import WhisperSpec
from tests.converters.tiny_whisper import SHAPE, ctranslate2_variables, tiny_whisper, token_ids, vocab_size, write_ctranslate2
from toolkit.errors import FormatError, UnsupportedModelError
from toolkit.fetch import fetch


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_whisper()


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ctranslate2(model, tmp_path_factory.mktemp("ct2") / "tiny")


def state(model: Any) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in model.state_dict().items() if name != "proj_out.weight"}


def test_every_tensor_of_the_model_comes_back_exactly(model: Any, folder: Path) -> None:
    tensors, expected = read_ctranslate2(folder).tensors, state(model)
    assert set(tensors.names()) == set(expected)
    for name in tensors.names():
        assert tensors.shape(name) == expected[name].shape
        np.testing.assert_array_equal(tensors.load(name), expected[name], err_msg=name)
        np.testing.assert_array_equal(np.concatenate(list(tensors.blocks(name))), expected[name], err_msg=name)


def test_a_mixed_up_projection_would_be_seen(model: Any, folder: Path) -> None:
    """The twin of the test above: keys read where queries lie differ."""
    tensors = read_ctranslate2(folder).tensors
    keys = tensors.load("model.decoder.layers.0.encoder_attn.k_proj.weight")
    assert np.abs(keys - state(model)["model.decoder.layers.0.encoder_attn.v_proj.weight"]).max() > 0.1


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_float32_and_float16_files_are_read(dtype: Any, model: Any, tmp_path: Path) -> None:
    tensors = read_ctranslate2(write_ctranslate2(model, tmp_path / "tiny", dtype=dtype)).tensors
    np.testing.assert_array_equal(tensors.load("model.encoder.conv2.weight"), state(model)["model.encoder.conv2.weight"])


def test_transformers_loads_what_is_written_strictly_and_answers_alike(model: Any, folder: Path, tmp_path: Path) -> None:
    import torch
    from transformers import WhisperForConditionalGeneration

    read_ctranslate2(folder).write_hf(tmp_path / "hf")
    loaded, report = WhisperForConditionalGeneration.from_pretrained(tmp_path / "hf", output_loading_info=True, dtype=torch.float32)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    mel = torch.randn(1, SHAPE["num_mel_bins"], 2 * SHAPE["max_source_positions"])
    ids = torch.tensor([[token_ids()["<|startoftranscript|>"], 5, 6]])
    with torch.no_grad():
        ours, theirs = (one.eval()(input_features=mel, decoder_input_ids=ids).logits for one in (loaded, model))
    assert torch.equal(ours, theirs)
    assert loaded.generation_config.lang_to_id == {f"<|{code}|>": token_ids()[f"<|{code}|>"] for code in ("en", "ja", "haw")}
    assert loaded.generation_config.suppress_tokens == [1, 2]


def test_the_spec_holds_sizes_tokens_and_heads(folder: Path) -> None:
    spec = read_ctranslate2(folder).spec
    assert (spec.n_mels, spec.hidden_size, spec.vocab_size) == (16, 48, vocab_size())
    assert (spec.encoder.n_layers, spec.encoder.n_heads, spec.encoder.intermediate_size) == (2, 4, 80)
    assert (spec.decoder.n_layers, spec.decoder.n_heads, spec.decoder.intermediate_size) == (3, 6, 72)
    assert (spec.n_audio_positions, spec.n_frames, spec.n_samples, spec.max_context_length) == (50, 100, 16_000, 40)
    assert spec.alignment_heads == ((1, 0), (2, 3))
    ids = token_ids()
    assert spec.tokens.languages == {"en": ids["<|en|>"], "ja": ids["<|ja|>"], "haw": ids["<|haw|>"]}
    assert spec.tokens.timestamp_begin == ids["<|notimestamps|>"] + 1 == vocab_size() - 1501
    assert spec.n_parameters == sum(value.size for value in state(tiny_whisper()).values())
    assert WhisperSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec


def test_a_folder_is_found_by_read_checkpoint_and_its_hashes_are_stated(folder: Path) -> None:
    checkpoint = read_checkpoint(folder)
    assert checkpoint.spec.model_type == "whisper"
    assert sorted(checkpoint.source.sha256) == ["config.json", "model.bin", "tokenizer.json", "vocabulary.txt"]
    assert (checkpoint.quantization.name, checkpoint.quantization.bits_per_weight) == ("float16", 16.0)


WIDTH = SHAPE["d_model"]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a missing variable": ({"encoder/conv1/bias": None}, "1 missing, first encoder/conv1/bias"),
    "an unknown variable": ({"encoder/layer_9/extra": np.zeros(9, np.float16)}, "1 unknown, first encoder/layer_9/extra"),
    "a wrong shape": ({"decoder/layer_norm/beta": np.zeros(WIDTH + 1, np.float16)}, "decoder/layer_norm/beta has shape"),
    "a key bias": ({"encoder/layer_0/self_attention/linear_0/bias": np.ones(3 * WIDTH, np.float16)}, "is not zero where the key"),
    "heads that do not divide": ({"encoder/num_heads": np.int16(5)}, "num_heads 5 does not divide"),
    "heads of zero": ({"decoder/num_heads": np.int16(0)}, "num_heads 0"),
    "heads as a float": ({"decoder/num_heads": np.float16(6)}, "no whole number"),
    "no layers": ({f"encoder/layer_{i}/ffn/linear_0/weight": None for i in (0, 1)}, "the encoder has no layers"),
    "another activation": ({"decoder/activation": np.int8(0)}, "decoder/activation is 0, known is 3"),
    "alibi": ({"decoder/alibi": np.int8(1)}, "decoder/alibi is 1"),
    "int8 weights": ({"encoder/conv2/weight": np.zeros((WIDTH, WIDTH, 3), np.int8)}, "stores weights as int8|conv2/weight holds codes"),
    "damaged weights": ({"decoder/layer_norm/gamma": np.full(WIDTH, np.nan, np.float16)}, "NaN or infinite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_is_no_sound_whisper_is_refused_with_its_reason(case: str, model: Any, tmp_path: Path) -> None:
    changes, reason = REFUSED[case]
    write_ctranslate2(model, tmp_path / "tiny", changes=changes)
    with pytest.raises(FormatError, match=reason):
        checkpoint = read_ctranslate2(tmp_path / "tiny")
        for name in checkpoint.tensors.names():
            checkpoint.tensors.load(name)


def change_json(path: Path, **values: Any) -> None:
    data = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in (data | values).items() if value is not None}))


FILES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a suppressed id outside": ("config.json", {"suppress_ids": [10**6]}, "suppress_ids must hold token ids"),
    "alignment heads outside": ("config.json", {"alignment_heads": [[9, 0]]}, "names a head that is not there"),
    "alignment heads as text": ("config.json", {"alignment_heads": "all"}, "must be a list"),
    "no special tokens": ("tokenizer.json", {"added_tokens": []}, "is missing"),
    "another model": ("tokenizer.json", {"model": {"type": "Unigram"}}, "no BPE"),
    "an id past the table": ("tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": 99999}, "merges": []}}, "the token table has"),
    "an id twice": ("tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": 1, "b": 1}, "merges": []}}, "id 1 is both"),
}


@pytest.mark.parametrize("case", FILES)
def test_small_files_that_contradict_the_model_are_refused(case: str, model: Any, tmp_path: Path) -> None:
    name, values, reason = FILES[case]
    folder = write_ctranslate2(model, tmp_path / "tiny")
    change_json(folder / name, **values)
    with pytest.raises(FormatError, match=reason):
        read_ctranslate2(folder)


def test_a_vocabulary_that_says_otherwise_is_refused(model: Any, tmp_path: Path) -> None:
    folder = write_ctranslate2(model, tmp_path / "tiny")
    lines = (folder / "vocabulary.txt").read_text("utf-8").splitlines()
    (folder / "vocabulary.txt").write_text("\n".join([lines[1], lines[0], *lines[2:]]), "utf-8")
    with pytest.raises(FormatError, match="2 ids differ"):
        read_ctranslate2(folder)
    (folder / "vocabulary.txt").write_text("\n".join(lines[:-1]), "utf-8")
    with pytest.raises(FormatError, match="it lists"):
        read_ctranslate2(folder)


def test_an_english_only_model_has_no_languages(model: Any, tmp_path: Path) -> None:
    folder = write_ctranslate2(model, tmp_path / "tiny")
    change_json(folder / "config.json", is_multilingual=False)
    assert read_ctranslate2(folder).spec.tokens.languages == {}


def test_another_model_of_ctranslate2_is_refused_by_name(model: Any, tmp_path: Path) -> None:
    from tests.converters.tiny_whisper import RawModel

    folder = write_ctranslate2(model, tmp_path / "tiny")
    (folder / "model.bin").write_bytes(RawModel(spec_name="TransformerSpec", revision=7).build())
    with pytest.raises(UnsupportedModelError, match="TransformerSpec, revision 7"):
        read_ctranslate2(folder)


def test_every_place_is_a_variable_the_converter_writes(model: Any, folder: Path) -> None:
    names = read_ctranslate2(folder).tensors.names()
    assert {place_of(name).variable for name in names} <= set(ctranslate2_variables(model))


@pytest.mark.real
@pytest.mark.parametrize(("name", "n_variables", "n_parameters"), [("whisper-tiny.en", 148, 37_760_256), ("whisper-base", 212, 72_593_920)])
def test_the_real_models_are_read_whole(name: str, n_variables: int, n_parameters: int) -> None:
    from converters.read.ctranslate2_header import read_ctranslate2_header

    path = fetch(name).path
    assert len(read_ctranslate2_header(path / "model.bin").variables) == n_variables
    checkpoint = read_ctranslate2(path, name=name)
    assert checkpoint.spec.n_parameters == n_parameters
    assert (checkpoint.spec.n_samples, checkpoint.spec.max_context_length) == (480_000, 448)
    assert len(checkpoint.spec.tokens.languages) == (0 if name.endswith(".en") else 99)
    table = checkpoint.tensors.load("model.decoder.embed_tokens.weight")
    assert table.shape == (checkpoint.spec.vocab_size, checkpoint.spec.hidden_size) and np.isfinite(table).all()
