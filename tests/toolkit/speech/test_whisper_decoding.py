from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.toolkit.speech.whisper_rules import END, TOKENS, VOCAB_SIZE, RandomModel
from toolkit.errors import UsageError
from toolkit.speech.whisper_decoding import DecodeOptions, Rules, decode_window, detect_language

SEEDS = range(40)


def transformers_choice(values: np.ndarray, prompt: list[int], taken: list[int], *, timestamps: bool) -> int:
    """What transformers' own logits processors leave as the likeliest token."""
    import torch
    from transformers import GenerationConfig
    from transformers.generation.logits_process import (
        SuppressTokensAtBeginLogitsProcessor,
        SuppressTokensLogitsProcessor,
        WhisperTimeStampLogitsProcessor,
    )

    config = GenerationConfig(
        no_timestamps_token_id=TOKENS.no_timestamps, eos_token_id=END, bos_token_id=END, max_initial_timestamp_index=50
    )
    config._detect_timestamp_from_logprob = True
    ids, scores = torch.tensor([[*prompt, *taken]]), torch.tensor(values[None], dtype=torch.float64)
    processors: list[Any] = [SuppressTokensLogitsProcessor(list(TOKENS.suppressed), device="cpu")]
    processors.append(SuppressTokensAtBeginLogitsProcessor(list(TOKENS.suppressed_at_start), len(prompt), device="cpu"))
    if timestamps:
        processors.append(WhisperTimeStampLogitsProcessor(config, begin_index=len(prompt)))
    for process in processors:
        scores = process(ids, scores)
    return int(scores.argmax())


@pytest.mark.parametrize("time_bias", [-4.0, 0.0, 2.0])
def test_every_choice_is_the_one_transformers_makes(time_bias: float) -> None:
    n_choices = n_times = 0
    for seed in SEEDS:
        model = RandomModel(seed, time_bias=time_bias)
        result = decode_window(model, TOKENS, DecodeOptions(language="en", max_tokens=20))
        prompt = list(TOKENS.prompt(language="en"))
        ids = [*result.token_ids, *([END] if result.is_complete else [])]
        for index, token_id in enumerate(ids):
            taken = ids[:index]
            assert token_id == transformers_choice(model.at([*prompt, *taken]), prompt, taken, timestamps=True), (seed, index)
            n_choices += 1
            n_times += token_id >= TOKENS.timestamp_begin
    assert n_choices > 100 and 0 < n_times < n_choices


def test_without_timestamps_choices_are_transformers_too() -> None:
    for seed in SEEDS:
        model = RandomModel(seed, time_bias=-40.0)
        result = decode_window(model, TOKENS, DecodeOptions(language="ja", timestamps=False, max_tokens=8))
        prompt = list(TOKENS.prompt(language="ja", timestamps=False))
        for index, token_id in enumerate(result.token_ids):
            taken = list(result.token_ids[:index])
            assert token_id == transformers_choice(model.at([*prompt, *taken]), prompt, taken, timestamps=False), (seed, index)


def test_a_rule_left_out_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: with times that may go back, or text allowed right after a closing time, choices differ."""

    def differs() -> bool:
        for seed in SEEDS:
            model = RandomModel(seed, time_bias=1.0)
            result = decode_window(model, TOKENS, DecodeOptions(language="en", max_tokens=20))
            prompt = list(TOKENS.prompt(language="en"))
            for index, token_id in enumerate(result.token_ids):
                taken = list(result.token_ids[:index])
                if token_id != transformers_choice(model.at([*prompt, *taken]), prompt, taken, timestamps=True):
                    return True
        return False

    assert not differs()
    with monkeypatch.context() as patch:
        patch.setattr(Rules, "_first_allowed_timestamp", lambda self: TOKENS.timestamp_begin)
        assert differs()
    with monkeypatch.context() as patch:
        patch.setattr(Rules, "_is_in_pair", lambda self: False)
        assert differs()


def test_the_prompt_is_fed_in_order_with_earlier_text_before_it() -> None:
    model = RandomModel(1)
    options = DecodeOptions(language="ja", task="translate", timestamps=False, max_tokens=1, previous=(5, 6, 99))
    decode_window(model, TOKENS, options)
    assert model.fed == [TOKENS.start_of_previous, 5, 6, TOKENS.start_of_transcript, 43, TOKENS.translate, TOKENS.no_timestamps]


def test_earlier_text_takes_at_most_half_the_context() -> None:
    model = RandomModel(1)
    result = decode_window(model, TOKENS, DecodeOptions(language="en", previous=tuple([7] * 500)))
    assert model.fed.count(TOKENS.start_of_previous) == 1 and model.fed.index(TOKENS.start_of_transcript) == 30
    assert len(result.token_ids) <= 30


def test_the_language_is_detected_from_the_first_step() -> None:
    model = RandomModel(3)
    result = decode_window(model, TOKENS, DecodeOptions(max_tokens=3))
    first = model.at([TOKENS.start_of_transcript])
    likelier = "en" if first[42] > first[43] else "ja"
    assert result.language == likelier
    code, probability = detect_language(model.step(TOKENS.start_of_transcript, 0), TOKENS)
    assert code == likelier and probability == pytest.approx(1 / (1 + math.exp(-abs(first[42] - first[43]))))


def test_probabilities_are_those_of_the_whole_distribution() -> None:
    model = RandomModel(5)
    result = decode_window(model, TOKENS, DecodeOptions(language="en", max_tokens=2))
    first = model.at([TOKENS.start_of_transcript])
    shares = np.exp(first - first.max()) / np.exp(first - first.max()).sum()
    assert result.no_speech_probability == pytest.approx(shares[TOKENS.no_speech])
    prompt = list(TOKENS.prompt(language="en"))
    expected = []
    for index, token_id in enumerate(result.token_ids):
        values = model.at([*prompt, *result.token_ids[:index]])
        expected.append(values[token_id] - np.log(np.exp(values).sum()))
    assert result.mean_log_probability == pytest.approx(np.mean(expected))


def test_an_answer_stops_at_its_end_or_at_the_limit() -> None:
    assert decode_window(RandomModel(2, end_bias=60.0), TOKENS, DecodeOptions(language="en")).is_complete
    cut = decode_window(RandomModel(2, end_bias=-60.0), TOKENS, DecodeOptions(language="en", max_tokens=7))
    assert (len(cut.token_ids), cut.is_complete) == (7, False)
    full = decode_window(RandomModel(2, end_bias=-60.0), TOKENS, DecodeOptions(language="en", max_tokens=10_000))
    assert len(full.token_ids) == RandomModel.max_context_length - 3


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(UsageError, match="'xx' is not one of"):
        decode_window(RandomModel(1), TOKENS, DecodeOptions(language="xx"))
    with pytest.raises(UsageError, match="no room"):
        decode_window(RandomModel(1), TOKENS, DecodeOptions(language="en", max_tokens=0))
    english = replace(TOKENS, is_multilingual=False, languages={})
    assert english.prompt() == (TOKENS.start_of_transcript,)
    assert english.prompt(language="en", timestamps=False) == (TOKENS.start_of_transcript, TOKENS.no_timestamps)
    for options in ({"language": "ja"}, {"task": "translate"}):
        with pytest.raises(UsageError, match="English only"):
            english.prompt(**options)  # type: ignore[arg-type]


def test_the_vocabulary_of_the_tests_is_sound() -> None:
    from toolkit.speech.whisper_tokens import WhisperTokens

    assert WhisperTokens.from_dict(TOKENS.as_dict(), vocab_size=VOCAB_SIZE) == TOKENS
