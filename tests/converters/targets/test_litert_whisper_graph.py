"""Whisper's two graphs in PyTorch, before lowering: they must answer like transformers on the same spectrogram."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tiny_speech import N_SAMPLES, TOKEN_IDS, TOLERANCE, TinySpeech, sound
from toolkit.speech.log_mel import log_mel

torch = pytest.importorskip("torch", reason="needs the convert extra")

from converters.targets import litert_whisper_graph as graph  # noqa: E402
from converters.targets.litert_whisper_graph import DecoderStep, Encoder, LogMel, never_text, step_inputs  # noqa: E402


@pytest.fixture(scope="module")
def tensors(tiny_speech: TinySpeech) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(str(tiny_speech.hf_dir / "model.safetensors")))


@pytest.fixture(scope="module")
def encoded(tiny_speech: TinySpeech, tensors: dict[str, Any]) -> dict[str, Any]:
    """What the encoder makes of one window."""
    with torch.inference_mode():
        answer: dict[str, Any] = Encoder(tiny_speech.checkpoint.spec, tensors).eval()(torch.from_numpy(sound())[None])
    return answer


@pytest.fixture(scope="module")
def expected(tiny_speech: TinySpeech, encoded: dict[str, Any]) -> np.ndarray:
    return tiny_speech.expected_logits(encoded["log_mel"][0].numpy())


def steps(speech: TinySpeech, tensors: dict[str, Any], cross: dict[str, Any], *, unused: float = 0.0) -> list[dict[str, Any]]:
    """Each token's outputs, its keys and values written where a caller writes them. `unused` fills the cache beforehand."""
    spec = speech.checkpoint.spec
    decoder, inputs = DecoderStep(spec, tensors).eval(), step_inputs(spec, cross)
    for cache in inputs["past"].values():
        cache.fill_(unused)
    answers = []
    with torch.inference_mode():
        for position, token_id in enumerate(TOKEN_IDS):
            inputs |= {"token": torch.tensor([[token_id]], dtype=torch.int32), "position": torch.tensor([position], dtype=torch.int32)}
            answer = decoder(**inputs)
            for name, row in answer["new"].items():
                inputs["past"][name][:, :, position] = row[:, :, 0]
            answers.append(answer)
    return answers


def error(answers: list[dict[str, Any]], expected: np.ndarray) -> float:
    return float(np.abs(np.concatenate([answer["logits"].numpy() for answer in answers]) - expected).max())


SOUNDS = {
    "a tone in noise": sound(),
    "a tone that stops": sound() * (np.arange(N_SAMPLES) < 8000).astype(np.float32),
    "a click": np.eye(1, N_SAMPLES, 1000, dtype=np.float32)[0],
    "silence": np.zeros(N_SAMPLES, np.float32),
}


@pytest.mark.parametrize("name", SOUNDS)
def test_the_front_end_in_the_graph_is_the_one_of_numpy(name: str, tiny_speech: TinySpeech) -> None:
    spec = tiny_speech.checkpoint.spec
    mel = LogMel(spec)(torch.from_numpy(SOUNDS[name])[None])[0].numpy()
    assert mel.shape == (spec.n_mels, spec.n_frames)
    assert np.abs(mel - log_mel(SOUNDS[name], n_mels=spec.n_mels)).max() <= TOLERANCE


def test_another_window_of_the_spectrum_would_be_seen(tiny_speech: TinySpeech, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a symmetric Hann window, which is what most libraries mean by the name."""
    monkeypatch.setattr(graph, "hann_window", lambda: np.hanning(400))
    spec = tiny_speech.checkpoint.spec
    mel = LogMel(spec)(torch.from_numpy(sound())[None])[0].numpy()
    assert np.abs(mel - log_mel(sound(), n_mels=spec.n_mels)).max() > 10 * TOLERANCE


def test_token_by_token_the_logits_are_transformers_own(
    tiny_speech: TinySpeech, tensors: dict[str, Any], encoded: dict[str, Any], expected: np.ndarray
) -> None:
    assert error(steps(tiny_speech, tensors, encoded["cross"]), expected) <= TOLERANCE


def test_what_lies_in_the_cache_behind_the_position_is_not_looked_at(
    tiny_speech: TinySpeech, tensors: dict[str, Any], encoded: dict[str, Any], expected: np.ndarray
) -> None:
    assert error(steps(tiny_speech, tensors, encoded["cross"], unused=7.0), expected) <= TOLERANCE


def test_a_mask_shifted_by_one_would_be_seen(
    tiny_speech: TinySpeech, tensors: dict[str, Any], encoded: dict[str, Any], expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: one row of the cache too many, and one too few."""
    arange = torch.arange
    for shift in (-1, 1):
        with monkeypatch.context() as patch:
            patch.setattr(graph.torch, "arange", lambda *args, shift=shift, **options: arange(*args, **options) + shift)
            assert error(steps(tiny_speech, tensors, encoded["cross"]), expected) > 10 * TOLERANCE


def test_cross_values_that_were_not_transposed_would_be_seen(
    tiny_speech: TinySpeech, tensors: dict[str, Any], encoded: dict[str, Any], expected: np.ndarray
) -> None:
    """The twin: the values as attention makes them, in a buffer of the shape that the step asks for."""
    cross = {name: value.transpose(2, 3).reshape(value.shape) if name[0] == "v" else value for name, value in encoded["cross"].items()}
    assert error(steps(tiny_speech, tensors, cross), expected) > 10 * TOLERANCE


def test_the_likeliest_text_and_the_normalizer_are_numpys(
    tiny_speech: TinySpeech, tensors: dict[str, Any], encoded: dict[str, Any]
) -> None:
    tokens = tiny_speech.checkpoint.spec.tokens
    for answer in steps(tiny_speech, tensors, encoded["cross"]):
        logits = answer["logits"][0].numpy().astype(np.float64)
        text = logits[: tokens.end_of_text].copy()
        text[list(tokens.suppressed)] = -np.inf
        assert int(answer["text_token"]) == int(text.argmax())
        assert abs(float(answer["log_total"]) - np.log(np.exp(logits).sum())) <= TOLERANCE
        assert abs(float(answer["log_total"]) - np.log(np.exp(logits[: tokens.end_of_text]).sum())) > 0.1  # the mutant: text alone


def test_text_is_what_lies_below_the_end_and_is_not_suppressed(tiny_speech: TinySpeech) -> None:
    spec = tiny_speech.checkpoint.spec
    said = np.flatnonzero(never_text(spec)[0] == 0).tolist()
    assert said == [token_id for token_id in range(spec.tokens.end_of_text) if token_id not in (1, 2)]


def test_every_sample_input_is_a_tensor_of_its_own(tiny_speech: TinySpeech, encoded: dict[str, Any]) -> None:
    """The converter would merge inputs that share their memory."""
    inputs = step_inputs(tiny_speech.checkpoint.spec, encoded["cross"])
    places = [tensor.data_ptr() for group in ("past", "cross") for tensor in inputs[group].values()]
    assert len(places) == len(set(places)) == 4 * tiny_speech.checkpoint.spec.decoder.n_layers
