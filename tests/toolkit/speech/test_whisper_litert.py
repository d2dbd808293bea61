"""Our LiteRT Whisper on a tiny random model: transformers' logits through every library, and nothing that contradicts itself."""

from __future__ import annotations

import array
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny_speech import N_SAMPLES, TOKEN_IDS, TOLERANCE, TinySpeech, samples, sound, speech_bundle
from tests.toolkit.small_manifest import small_bundle
from toolkit.bundle import Bundle
from toolkit.errors import FormatError, UsageError
from toolkit.speech.litert_c import LIBRARIES, LiteRtLibrary, installed_libraries, open_library
from toolkit.speech.log_mel import log_mel
from toolkit.speech.whisper_litert import WhisperLiteRt

Answers = list[tuple[int, float, bytes]]


@pytest.fixture(scope="module")
def model(tiny_speech: TinySpeech) -> Iterator[WhisperLiteRt]:
    with WhisperLiteRt(tiny_speech.graph, tiny_speech.spec, name="tiny", n_threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(tiny_speech: TinySpeech) -> np.ndarray:
    return tiny_speech.expected_logits(log_mel(sound(), n_mels=tiny_speech.spec["n_mels"]))


def decode(model: WhisperLiteRt, values: np.ndarray) -> Answers:
    """Everything each step says after one window of sound."""
    model.encode(samples(values))
    steps = (model.step(token_id, position) for position, token_id in enumerate(TOKEN_IDS))
    return [(step.text_token, step.log_total, step.logits(0, model.dims.vocab_size).tobytes()) for step in steps]


def logits(answers: Answers) -> np.ndarray:
    return np.stack([np.frombuffer(raw, np.float32) for _, _, raw in answers])


def opened_library(package: str) -> LiteRtLibrary:
    found = installed_libraries()
    if package not in found:
        pytest.skip(f"needs {package}")
    return open_library(found[package])


@pytest.mark.parametrize("package", LIBRARIES)
def test_the_logits_are_transformers_own_through_every_library(package: str, tiny_speech: TinySpeech, expected: np.ndarray) -> None:
    with WhisperLiteRt(tiny_speech.graph, tiny_speech.spec, name="tiny", library=opened_library(package)) as model:
        answers = decode(model, sound())
        mel = np.array(model.log_mel(), np.float32).reshape(model.dims.n_mels, -1)
    assert np.abs(logits(answers) - expected).max() <= TOLERANCE
    assert np.abs(mel - log_mel(sound(), n_mels=16)).max() <= TOLERANCE
    totals = [total for _, total, _ in answers]
    assert np.abs(np.log(np.exp(expected.astype(np.float64)).sum(1)) - totals).max() <= TOLERANCE


def test_the_libraries_answer_bit_for_bit_alike(tiny_speech: TinySpeech) -> None:
    found = [opened_library(package) for package in LIBRARIES]
    answers = []
    for library in found:
        with WhisperLiteRt(tiny_speech.graph, tiny_speech.spec, name="tiny", library=library) as model:
            answers.append(decode(model, sound()))
    assert answers[0] == answers[1]
    assert answers[0][-1] != answers[0][-2], "comparing equal constants would prove nothing"


def test_keys_kept_in_the_wrong_row_would_be_seen(model: WhisperLiteRt, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a cache written one row behind, or not at all, gives other logits from the second token on."""
    keep: Callable[[WhisperLiteRt, int], None] = WhisperLiteRt._keep
    for mutant in (lambda self, position: keep(self, position + 1), lambda self, position: None):
        for _, past in model._moves:
            past.clear()
        with monkeypatch.context() as patch:
            patch.setattr(WhisperLiteRt, "_keep", mutant)
            error = np.abs(logits(decode(model, sound())) - expected).max(1)
        assert error[0] <= TOLERANCE < error[1:].min()


def test_other_sound_would_be_seen(model: WhisperLiteRt, expected: np.ndarray) -> None:
    """The twin: the same steps without hearing this window."""
    assert np.abs(logits(decode(model, sound(seed=1))) - expected).max() > 10 * TOLERANCE


def test_a_second_window_begins_anew_and_a_short_one_is_followed_by_silence(model: WhisperLiteRt) -> None:
    short = sound()[:5000]
    decode(model, sound(seed=3))
    after_another = decode(model, short)
    padded = np.concatenate([short, np.zeros(N_SAMPLES - 5000, np.float32)])
    assert decode(model, padded) == after_another == decode(model, short)


def test_a_step_may_be_taken_again_from_an_earlier_position(model: WhisperLiteRt) -> None:
    first = decode(model, sound())
    again = model.step(TOKEN_IDS[3], 3)
    assert again.logits(0, model.dims.vocab_size).tobytes() == first[3][2]


def test_a_part_of_the_logits_is_read_alone(model: WhisperLiteRt) -> None:
    model.encode([0.0])
    step = model.step(TOKEN_IDS[0], 0)
    everything = step.logits(0, model.dims.vocab_size)
    assert step.logits(100, 103) == everything[100:103] and len(step.logits(7, 7)) == 0
    with pytest.raises(ValueError, match="of a tensor of"):
        step.logits(model.dims.vocab_size - 1, model.dims.vocab_size + 1)


def lies(spec: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The spec with other numbers; `decoder` holds changes of the decoder's."""
    changed = copy.deepcopy(spec)
    changed["decoder"] |= changes.pop("decoder", {})
    return changed | changes


LIES: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "one token more": (lambda spec: lies(spec, vocab_size=spec["vocab_size"] + 1), r"decode outputs: logits is \(1, 1771\)"),
    "a layer more": (lambda spec: lies(spec, decoder={"n_layers": 4}), "encode outputs: cross_k_3 is None"),
    "a layer less": (lambda spec: lies(spec, decoder={"n_layers": 2}), r"encode outputs: cross_k_2 is \(1, 6, 50, 8\)"),
    "other heads": (lambda spec: lies(spec, decoder={"n_heads": 4}), "encode outputs: cross_k_0 is"),
    "heads that do not divide": (lambda spec: lies(spec, decoder={"n_heads": 5}), "5 heads do not divide a width of 48"),
    "a longer context": (lambda spec: lies(spec, max_context_length=41), "decode inputs: past_k_0 is"),
    "more mel bands": (lambda spec: lies(spec, n_mels=17), "encode outputs: log_mel is"),
    "a longer window": (lambda spec: lies(spec, n_audio_positions=51), "encode inputs: waveform is"),
    "no layers": (lambda spec: lies(spec, decoder={"n_layers": 0}), "spec.n_layers is 0"),
    "a size as text": (lambda spec: lies(spec, vocab_size="1771"), "spec.vocab_size is 1771"),
    "no decoder": (lambda spec: spec | {"decoder": []}, "spec.n_heads is None"),
    "no tokens": (lambda spec: spec | {"tokens": None}, "does not describe Whisper's tokens"),
}


@pytest.mark.parametrize("case", LIES)
def test_a_spec_that_contradicts_its_graph_is_refused_by_the_tensor(case: str, tiny_speech: TinySpeech) -> None:
    lie, reason = LIES[case]
    with pytest.raises(FormatError, match=reason) as caught:
        WhisperLiteRt(tiny_speech.graph, lie(tiny_speech.spec), name="tiny-litert-int8")
    assert len(str(caught.value).splitlines()) == 3 and "tiny-litert-int8" in caught.value.what


BAD_SOUND: dict[str, tuple[Any, str]] = {
    "one sample too many": ([0.0] * (N_SAMPLES + 1), "16001 samples do not fit one window"),
    "a value that is no number": ([0.0, float("nan")], "no numbers"),
    "an infinite value": (array.array("f", [float("inf")]), "no numbers"),
    "infinities that cancel": ([float("inf"), float("-inf")], "no numbers"),
}


@pytest.mark.parametrize("case", BAD_SOUND)
def test_sound_that_cannot_be_heard_is_refused(case: str, model: WhisperLiteRt) -> None:
    values, reason = BAD_SOUND[case]
    before = decode(model, sound())
    with pytest.raises(UsageError, match=reason):
        model.encode(values)
    assert model.step(TOKEN_IDS[0], 0).logits(0, 1771).tobytes() == before[0][2], "the window before it is still there"
    model.encode([0.0] * N_SAMPLES)  # the twin: a whole window is taken


@pytest.mark.parametrize(("token_id", "position"), [(-1, 0), (1771, 0), (0, -1), (0, 40)])
def test_a_token_or_position_outside_the_tables_is_refused(token_id: int, position: int, model: WhisperLiteRt) -> None:
    with pytest.raises(ValueError, match=f"token {token_id} at position {position}; 1771 tokens, 40 positions"):
        model.step(token_id, position)
    model.step(1770, 39)  # the twin: the last of each is taken


@pytest.mark.parametrize("n_threads", [0, 65])
def test_a_number_of_threads_that_is_none_is_refused(n_threads: int, tiny_speech: TinySpeech) -> None:
    with pytest.raises(UsageError, match="threads are not possible"):
        WhisperLiteRt(tiny_speech.graph, tiny_speech.spec, name="tiny", n_threads=n_threads)


def test_a_bundle_is_opened_by_its_manifest_and_another_models_is_refused(
    tiny_speech: TinySpeech, own_folders: Path, model: WhisperLiteRt
) -> None:
    folder = speech_bundle(tiny_speech, own_folders / "tiny-litert-fp32")
    with WhisperLiteRt.open(Bundle.open(folder)) as opened:
        assert (opened.n_samples, opened.max_context_length, opened.tokens) == (N_SAMPLES, 40, model.tokens)
    with pytest.raises(UsageError, match="it is a llama for litert"):
        WhisperLiteRt.open(Bundle.open(small_bundle(own_folders / "small")))
