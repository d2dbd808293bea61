"""The LiteRT target for Whisper on a tiny random model: what it refuses, and that each recipe comes to what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from converters.recipe import Override, Promotion, Recipe, load_recipe
from converters.rule import Granularity, Rule, TensorClass
from converters.targets.base import ConvertOptions
from converters.targets.litert_whisper import TARGET, quantizer_recipe
from converters.targets.whisper_scorer import WhisperScorer, rule_for
from tests.tiny_speech import TOKEN_IDS, TOLERANCE, TinySpeech, samples, sound
from toolkit.errors import UsageError
from toolkit.speech.log_mel import log_mel

OPTIONS = ConvertOptions(context_length=40)


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
    "rows in int8": (replaced(INT4, int8_rows=100), "rows in int8"),
    "the source's own codes": (load_recipe("keep"), "keep"),
    "codes that calibration chooses": (load_recipe("int4-g32-gptq"), "gptq"),
    "a rotation": (load_recipe("int8-hadamard"), "hadamard"),
    "another head": (replaced(INT4, TensorClass.HEAD, group_size=64), r"\[rules.head\] must equal \[rules.linear\]"),
    "eight bits in groups": (replaced(INT4, bits=8), "8 bits by blockwise"),
    "one scale for all": (replaced(INT8, granularity=Granularity.TENSOR), "8 bits by tensor"),
    "affine codes": (replaced(INT8, is_symmetric=False), "affine"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_recipe_that_would_not_be_carried_out_is_refused_before_any_work(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TARGET, "tools", dict)
    asked, why = REFUSED[case]
    nothing: Any = None
    with pytest.raises(UsageError, match=why) as caught:
        TARGET.check(nothing, [INT8, asked], OPTIONS)
    assert "use fp32, fp16, int8 or int4-g32" in caught.value.fix
    TARGET.check(nothing, [load_recipe(name) for name in ("fp32", "fp16", "int8", "int4-g32")], OPTIONS)  # what it offers it takes


def test_only_matrices_that_are_multiplied_or_looked_up_are_rounded() -> None:
    rules = INT8.rules
    assert rule_for("model.decoder.embed_tokens.weight", (10, 4), rules) == rules[TensorClass.EMBEDDING]
    assert rule_for("model.encoder.layers.0.fc1.weight", (10, 4), rules) == rules[TensorClass.LINEAR]
    for name, shape in (
        ("model.encoder.conv1.weight", (10, 4, 3)),
        ("model.encoder.embed_positions.weight", (10, 4)),
        ("model.decoder.embed_positions.weight", (10, 4)),
        ("model.decoder.layer_norm.weight", (10,)),
    ):
        assert rule_for(name, shape, rules) is None


def test_the_quantizer_is_told_operations_so_that_convolutions_stay_in_float() -> None:
    assert quantizer_recipe(load_recipe("fp32").rules) == []
    assert [entry["operation"] for entry in quantizer_recipe(INT8.rules)] == ["FULLY_CONNECTED", "EMBEDDING_LOOKUP"]


def test_groups_that_do_not_divide_a_matrix_are_refused_with_its_name(tiny_speech: TinySpeech) -> None:
    with pytest.raises(
        UsageError, match=r"recipe int4-g32 does not fit model\.encoder\.layers\.0\.self_attn.*\n.*32 does not divide in_features 48"
    ):
        TARGET.promise(tiny_speech.checkpoint, INT4)


@pytest.fixture(scope="module")
def written(tiny_speech: TinySpeech, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The model of a recipe, quantized once."""
    made: dict[str, Path] = {}

    def model(name: str) -> Path:
        if name not in made:
            nothing: Any = None
            made[name] = TARGET.quantize(
                tiny_speech.checkpoint, tiny_speech.graph, load_recipe(name), tmp_path_factory.mktemp(name), nothing
            )
        return made[name]

    return model


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8"])
def test_the_file_comes_to_what_was_promised_and_says_what_stayed_float(
    name: str, written: Callable[[str], Path], tiny_speech: TinySpeech, tmp_path: Path
) -> None:
    recipe = load_recipe(name)
    assembled = TARGET.assemble(tiny_speech.checkpoint, written(name), recipe, OPTIONS, tmp_path)
    promised = TARGET.promise(tiny_speech.checkpoint, recipe)
    assert assembled.bits_per_weight == pytest.approx(promised, rel=2e-3), "biases of int8 layers have scales, which no rule promises"
    for other in {"fp32", "fp16", "int8"} - {name}:  # the twin: another recipe's promise is not met
        assert assembled.bits_per_weight != pytest.approx(TARGET.promise(tiny_speech.checkpoint, load_recipe(other)), rel=0.02)
    assert (tmp_path / assembled.entry).read_bytes() == written(name).read_bytes()
    assert (tmp_path / "tokenizer.json").read_bytes() == tiny_speech.checkpoint.tokenizer_json
    assert "convolutions" in assembled.as_written["float"] and assembled.stop_token_ids == tiny_speech.checkpoint.spec.eos_token_ids
    assert TARGET.extract_model(tmp_path / assembled.entry, tmp_path) == tmp_path / assembled.entry


ERRORS = {"fp32": (0.0, TOLERANCE), "fp16": (1e-5, 0.01), "int8": (1e-3, 0.1)}  # of a logit: at least, at most


@pytest.mark.parametrize("name", ERRORS)
def test_each_recipe_answers_like_transformers_within_its_error(name: str, written: Callable[[str], Path], tiny_speech: TinySpeech) -> None:
    scorer = TARGET.open_speech_scorer(written(name), tiny_speech.spec)
    scorer.hear(samples(sound()))
    got = np.concatenate(list(scorer.logits(TOKEN_IDS, 3)))
    expected = tiny_speech.expected_logits(log_mel(sound(), n_mels=tiny_speech.checkpoint.spec.n_mels))[3:]
    assert got.shape == expected.shape == (len(TOKEN_IDS) - 3, tiny_speech.checkpoint.spec.vocab_size)
    least, most = ERRORS[name]
    assert least <= np.abs(got - expected).max() <= most
    assert np.abs(got[1:] - expected[:-1]).max() > most, "a row off would not show"
    assert len(scorer.greedy("en", 5)) <= 5
    scorer.model.close()


def test_logits_of_the_prompt_are_left_out_and_positions_follow_each_other() -> None:
    asked: list[tuple[int, int]] = []

    def step(token_id: int, position: int) -> Any:
        asked.append((token_id, position))
        return SimpleNamespace(logits=lambda start, stop: [float(token_id)] * (stop - start))

    model = SimpleNamespace(dims=SimpleNamespace(vocab_size=2), step=step)
    rows = [row.tolist() for row in WhisperScorer(model).logits([7, 8, 9, 10], 2)]
    assert rows == [[[9.0, 9.0]], [[10.0, 10.0]]] and asked == [(7, 0), (8, 1), (9, 2), (10, 3)]
