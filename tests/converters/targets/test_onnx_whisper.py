"""The ONNX target for Whisper on a tiny random model: what it refuses, and that each recipe comes to what it promises."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from converters.architectures.whisper import tensor_shapes
from converters.recipe import Override, Promotion, Recipe, load_recipe
from converters.rule import Granularity, Rule, TensorClass
from converters.targets import onnx_whisper as target_module
from converters.targets import onnx_whisper_sherpa
from converters.targets.base import ConvertOptions
from converters.targets.onnx_whisper import TARGET, graph_bits
from converters.targets.onnx_whisper_files import ENCODER_NAME, encoder_facts, text_tokens, tokens_txt
from converters.whisper_spec import StackSpec
from tests.converters.targets.onnx_whispers import OnnxWhisper, onnx_whisper
from tests.tiny_speech import TOKEN_IDS, TOLERANCE, samples, sound
from toolkit.errors import FormatError, ToolkitError, UsageError
from toolkit.speech.log_mel import log_mel

onnx: Any = pytest.importorskip("onnx", reason="pip install 'ondevice-toolkit[convert,onnx]'")
OPTIONS = ConvertOptions(context_length=40, is_verified=False)
NAMES = ("fp32", "fp16", "int8", "int4-g32")


def replaced(base: Recipe, *kinds: TensorClass, **changes: Any) -> Recipe:
    """With other fields in the rules of some classes, of all by default."""
    return replace(
        base, rules={kind: replace(rule, **changes) if kind in (kinds or (kind,)) else rule for kind, rule in base.rules.items()}
    )


INT8, INT4 = load_recipe("int8"), load_recipe("int4-g32")
BETTER: Rule = INT8.rules[TensorClass.LINEAR]
REFUSED: dict[str, tuple[Recipe, str]] = {
    "a rule for one tensor": (replace(INT8, overrides=(Override("model.encoder.*", BETTER),)), "rules of single tensors"),
    "promoted matrices": (replace(INT4, promotion=Promotion(5.0, BETTER)), "promoted"),
    "rows in int8": (replaced(INT4, int8_rows=100), "int8_rows"),
    "the source's own codes": (load_recipe("keep"), "own codes"),
    "codes that calibration chooses": (load_recipe("int4-g32-gptq"), "gptq"),
    "a rotation": (load_recipe("int8-hadamard"), "rotation"),
    "another head": (replaced(INT4, TensorClass.HEAD, group_size=64), r"\[rules.head\] must equal \[rules.embedding\]"),
    "five bits": (replaced(INT4, bits=5), "5-bit"),
    "one scale for all": (replaced(INT8, granularity=Granularity.TENSOR), "one scale for a whole tensor"),
    "affine codes": (replaced(INT8, is_symmetric=False), "affine"),
}


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> OnnxWhisper:
    return onnx_whisper(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def written(whisper: OnnxWhisper, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a recipe, written once."""
    made: dict[str, Path] = {}

    def model(name: str) -> Path:
        if name not in made:
            made[name] = whisper.write(name, tmp_path_factory.mktemp(name))
        return made[name]

    return model


@pytest.mark.parametrize("case", REFUSED)
def test_a_recipe_that_would_not_be_carried_out_is_refused_before_any_work(case: str, whisper: OnnxWhisper) -> None:
    asked, why = REFUSED[case]
    with pytest.raises(UsageError, match=why) as caught:
        TARGET.check(whisper.checkpoint, [INT8, asked], OPTIONS)
    assert "use fp32, fp16, int8 or int4-g32" in caught.value.fix and asked.name in caught.value.what
    TARGET.check(whisper.checkpoint, [load_recipe(name) for name in NAMES], OPTIONS)  # what it offers it takes


def test_groups_that_do_not_divide_a_matrix_are_refused_with_its_name(tmp_path: Path) -> None:
    odd = onnx_whisper(tmp_path, encoder_ffn_dim=80).checkpoint
    with pytest.raises(UsageError, match=r"recipe int8 does not fit model\.encoder\.layers\.0\.fc2\.weight.*\n.*32 do not divide.* 80"):
        TARGET.check(odd, [INT8], OPTIONS)
    TARGET.check(odd, [load_recipe("fp16")], OPTIONS)  # the fix that it names


def test_a_file_that_would_be_too_large_is_refused_with_its_size(whisper: OnnxWhisper, monkeypatch: pytest.MonkeyPatch) -> None:
    fp32 = load_recipe("fp32")
    most = max(graph_bits(whisper.checkpoint, fp32).values()) // 8
    monkeypatch.setattr(target_module, "MAX_GRAPH_BYTES", most - 1)
    with pytest.raises(UsageError, match=r"does not fit ONNX as fp32\n.*decoder\.onnx would have 0\.00 GiB"):
        TARGET.check(whisper.checkpoint, [fp32], OPTIONS)
    monkeypatch.setattr(target_module, "MAX_GRAPH_BYTES", most)
    TARGET.check(whisper.checkpoint, [fp32], OPTIONS)


def test_a_value_beyond_float16_is_refused_with_its_tensor(whisper: OnnxWhisper, tmp_path: Path) -> None:
    tensors, name = whisper.checkpoint.tensors, "model.decoder.layers.1.fc1.weight"

    class Loud:
        def __getattr__(self, attribute: str) -> Any:
            return getattr(tensors, attribute)

        def load(self, asked: str) -> np.ndarray:
            values: np.ndarray = tensors.load(asked)
            return values * 1e6 if asked == name else values

    loud = OnnxWhisper(whisper.model, replace(whisper.checkpoint, tensors=Loud()))
    with pytest.raises(UsageError, match=rf"recipe fp16 cannot be written.*\n.*{name} holds .* beyond float16"):
        loud.write("fp16", tmp_path / "fp16")
    loud.write("fp32", tmp_path / "fp32")


@pytest.mark.parametrize("name", NAMES)
def test_the_files_come_to_what_was_promised_and_say_what_stayed_float(
    name: str, written: Callable[[str], Path], whisper: OnnxWhisper, tmp_path: Path
) -> None:
    recipe, checkpoint = load_recipe(name), whisper.checkpoint
    assembled = TARGET.assemble(checkpoint, written(name), recipe, OPTIONS, tmp_path)
    assert assembled.bits_per_weight == pytest.approx(TARGET.promise(checkpoint, recipe), rel=1e-3)
    for other in {*NAMES} - {name}:  # the twin: another recipe's promise is not met
        assert assembled.bits_per_weight != pytest.approx(TARGET.promise(checkpoint, load_recipe(other)), rel=0.02)
    assert sum(assembled.as_written["weight_bits_by_type"].values()) // 8 == assembled.memory["weights_bytes"]
    assert "convolutions" in assembled.as_written["float"] and assembled.stop_token_ids == checkpoint.spec.eos_token_ids
    assert TARGET.extract_model(tmp_path / assembled.entry, tmp_path / "elsewhere") == tmp_path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decoder.onnx", "encoder.onnx", "tokenizer.json", "tokens.txt"]


# of a logit: at least, at most. Random weights of these sizes give logits of about 0.3, up to 1.
ERRORS = {"fp32": (0.0, TOLERANCE), "fp16": (0.0, TOLERANCE), "int8": (TOLERANCE, 0.1), "int4-g32": (0.02, 0.3)}


@pytest.mark.parametrize("name", NAMES)
def test_each_recipe_answers_like_transformers_within_its_error(name: str, written: Callable[[str], Path], whisper: OnnxWhisper) -> None:
    scorer = TARGET.open_speech_scorer(written(name), whisper.spec)
    scorer.hear(samples(sound()))
    got = np.concatenate(list(scorer.logits(TOKEN_IDS, 3)))
    expected = whisper.expected(log_mel(sound(), n_mels=whisper.checkpoint.spec.n_mels))[3:]
    assert got.shape == expected.shape == (len(TOKEN_IDS) - 3, whisper.checkpoint.spec.vocab_size)
    least, most = ERRORS[name]
    assert least <= np.abs(got - expected).max() <= most
    assert np.abs(np.roll(got, 1, axis=1) - expected).max() > 2 * most, "a token off would not show"
    assert len(scorer.greedy("en", 5)) <= 5


def test_text_is_no_way_to_measure_it(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="no text scorer"):
        TARGET.open_scorer(tmp_path)


def test_every_text_token_is_listed_with_its_bytes_and_an_empty_one_is_not(whisper: OnnxWhisper) -> None:
    tokens = text_tokens(whisper.checkpoint.tokenizer_json, whisper.checkpoint.spec)
    assert max(tokens) < whisper.checkpoint.spec.tokens.end_of_text
    lines = [line.split(" ") for line in tokens_txt({**tokens, 1000: b"", 1001: b"\xff\n "}).splitlines()]
    read = {int(token_id): base64.b64decode(piece) for piece, token_id in lines}
    assert read == {token_id: piece for token_id, piece in tokens.items() if piece} | {1001: b"\xff\n "}
    assert b" " in read.values() and all(len(line) == 2 and line[0] for line in lines)


@pytest.mark.parametrize(
    "damaged", [b"\xff", b"{}", b"[1]", b'{"model": {"vocab": {"\xe4\xb8\x80": 1}}}', b'{"model": {"vocab": {"a": null}}}']
)
def test_a_tokenizer_without_a_vocabulary_is_a_bad_file(damaged: bytes, whisper: OnnxWhisper) -> None:
    with pytest.raises(FormatError, match="no vocabulary of Whisper"):
        TARGET.check(replace(whisper.checkpoint, tokenizer_json=damaged), [INT8], OPTIONS)


def test_the_encoder_names_sizes_tokens_and_languages(whisper: OnnxWhisper, written: Callable[[str], Path]) -> None:
    spec = whisper.checkpoint.spec
    facts = {entry.key: entry.value for entry in onnx.load(written("fp32") / ENCODER_NAME).metadata_props}
    assert facts["n_mels"] == "16" and facts["n_text_layer"] == "3" and facts["n_text_ctx"] == "40" and facts["n_text_state"] == "96"
    assert facts["is_multilingual"] == "1" and facts["all_language_codes"] == ",".join(spec.tokens.languages)
    assert facts["all_language_tokens"].split(",") == [str(token_id) for token_id in spec.tokens.languages.values()]
    assert tuple(map(int, facts["sot_sequence"].split(","))) == spec.tokens.prompt(language="en", timestamps=True)
    assert all(facts.values())


def test_an_english_model_has_a_prompt_of_one_token_and_no_languages(whisper: OnnxWhisper) -> None:
    spec = whisper.checkpoint.spec
    english = replace(spec, tokens=replace(spec.tokens, is_multilingual=False, languages={}))
    facts = encoder_facts(english, {7: b" "})
    assert facts["sot_sequence"] == str(spec.tokens.start_of_transcript) and facts["is_multilingual"] == "0" and facts["blank_id"] == "7"
    assert "all_language_tokens" not in facts


def test_what_was_proven_through_sherpa_onnx_is_stated_only_when_verified(
    whisper: OnnxWhisper, written: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_whisper_sherpa, "opened_by", lambda folder, n_frames: {"sherpa-onnx": f"{folder.name} {n_frames}"})
    for is_verified, expected in ((False, {}), (True, {"sherpa-onnx": "True 100"})):
        place = tmp_path / str(is_verified)
        place.mkdir()
        options = replace(OPTIONS, is_verified=is_verified)
        assembled = TARGET.assemble(whisper.checkpoint, written("int8"), INT8, options, place)
        assert assembled.as_written["opened_by"] == expected
        json.dumps(assembled.as_written)


def test_the_estimate_covers_what_was_measured_and_grows_with_what_is_written(whisper: OnnxWhisper) -> None:
    """whisper-tiny.en: 438 MiB for writing float32, 391 for measuring it; 236 and 321 for int8; both at once, all processes, 1602."""
    tiny_en = {"hidden_size": 384, "n_mels": 80, "vocab_size": 51864, "n_audio_positions": 1500, "max_context_length": 448}
    spec = replace(whisper.checkpoint.spec, encoder=StackSpec(4, 6, 1536), decoder=StackSpec(4, 6, 1536), **tiny_en)
    checkpoint: Any = SimpleNamespace(spec=spec, tensor_shapes=lambda: tensor_shapes(spec))
    lean = ConvertOptions(is_lean=True, is_verified=False)

    def peak_mib(recipe: str, options: ConvertOptions) -> float:
        return TARGET.estimate(checkpoint, [load_recipe(recipe)], options).peak_memory_bytes / 2**20

    assert spec.n_parameters == 37_760_256
    for recipe, least in (("fp32", 438), ("int8", 236)):
        assert least <= peak_mib(recipe, lean) <= 2 * least
        assert peak_mib(recipe, replace(lean, is_verified=True)) >= max(least, 391)
        assert peak_mib(recipe, replace(lean, is_lean=False)) == pytest.approx(2 * peak_mib(recipe, lean))
    assert 1602 <= peak_mib("fp32", ConvertOptions()) <= 2 * 1602
    assert peak_mib("int8", lean) < peak_mib("fp32", lean)
    assert TARGET.estimate(checkpoint, [INT8], lean).disk_bytes == pytest.approx(42 * 2**20, rel=0.03)
