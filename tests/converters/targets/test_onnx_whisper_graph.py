"""Whisper's two ONNX graphs against transformers: frames as they come, tokens one by one or at once, and the caches between them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.targets.onnx_whisper_files import DECODER_NAME, ENCODER_NAME
from converters.targets.onnx_whisper_run import WhisperOnnx
from tests.converters.targets.onnx_whispers import OnnxWhisper, onnx_whisper
from tests.tiny_speech import TOKEN_IDS, TOLERANCE, samples, sound
from toolkit.errors import FormatError
from toolkit.speech.log_mel import log_mel

onnx: Any = pytest.importorskip("onnx", reason="pip install 'ondevice-toolkit[convert,onnx]'")


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> OnnxWhisper:
    """Every size another, none a multiple of 32: nothing but floats fits it."""
    return onnx_whisper(tmp_path_factory.mktemp("source"), d_model=48, encoder_ffn_dim=80, decoder_ffn_dim=72)


@pytest.fixture(scope="module")
def folder(whisper: OnnxWhisper, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whisper.write("fp32", tmp_path_factory.mktemp("fp32"))


@pytest.fixture(scope="module")
def mel(whisper: OnnxWhisper) -> np.ndarray:
    return log_mel(sound(), n_mels=whisper.checkpoint.spec.n_mels)


@pytest.fixture
def model(whisper: OnnxWhisper, folder: Path, mel: np.ndarray) -> WhisperOnnx:
    """Opened, with the sound in it."""
    opened = WhisperOnnx(folder, whisper.spec)
    opened.encode_mel(mel)
    return opened


def taken(model: WhisperOnnx, *lengths: int) -> np.ndarray:
    """Logits after each of `TOKEN_IDS`, taken in chunks of these lengths."""
    rows, position = [], 0
    for length in lengths:
        rows.append(model.steps(TOKEN_IDS[position : position + length], position))
        position += length
    return np.concatenate(rows)


def test_both_graphs_are_sound_onnx(folder: Path) -> None:
    for name in (ENCODER_NAME, DECODER_NAME):
        onnx.checker.check_model(onnx.load(folder / name), full_check=False)


@pytest.mark.parametrize("lengths", [(8,), (1,) * 8, (4, 1, 1, 1, 1), (3, 2, 3)])
def test_tokens_in_any_chunks_are_answered_as_by_transformers(
    lengths: tuple[int, ...], model: WhisperOnnx, whisper: OnnxWhisper, mel: np.ndarray
) -> None:
    expected = whisper.expected(mel)
    assert np.abs(taken(model, *lengths) - expected).max() < TOLERANCE < expected.std()


def test_a_cache_at_another_offset_or_of_another_sound_is_noticed(model: WhisperOnnx, whisper: OnnxWhisper, mel: np.ndarray) -> None:
    """Must-fail twins of the comparison above."""
    expected = whisper.expected(mel)
    model.steps(TOKEN_IDS[:4], 0)
    assert np.abs(model.steps(TOKEN_IDS[4:], 5) - expected[4:]).max() > 10 * TOLERANCE, "a row off"
    model.encode_mel(log_mel(sound(1), n_mels=whisper.checkpoint.spec.n_mels))
    assert np.abs(taken(model, 8) - expected).max() > 10 * TOLERANCE, "another sound"


def test_a_token_sees_nothing_of_those_behind_it_nor_of_what_the_cache_held_before(model: WhisperOnnx) -> None:
    first = taken(model, 8)
    again = model.steps([*TOKEN_IDS[:4], 9, 9, 9, 9], 0)
    assert np.abs(again[:4] - first[:4]).max() < TOLERANCE < np.abs(again[4:] - first[4:]).max()
    after = np.concatenate([model.steps(TOKEN_IDS[:4], 0), *(model.steps([token], 4 + n) for n, token in enumerate(TOKEN_IDS[4:]))])
    assert np.abs(after - first).max() < TOLERANCE


def test_the_last_position_of_the_cache_can_be_taken_and_no_other(model: WhisperOnnx, whisper: OnnxWhisper, mel: np.ndarray) -> None:
    token_ids = [*TOKEN_IDS, *range(3, 35)]
    assert len(token_ids) == whisper.checkpoint.spec.max_context_length
    rows = [model.steps(token_ids[:30], 0), *(model.steps([token], 30 + n) for n, token in enumerate(token_ids[30:]))]
    assert np.abs(np.concatenate(rows) - whisper.expected(mel, token_ids)).max() < TOLERANCE
    with pytest.raises(Exception, match="Gather"):  # the runtime's own class: the position table has no such row
        model.steps([5], len(token_ids))


def with_window(whisper: OnnxWhisper, n_positions: int) -> OnnxWhisper:
    """The same weights with a shorter table of positions, as transformers takes windows of its table's length alone."""
    config = copy.deepcopy(whisper.model.config)
    config.max_source_positions = n_positions
    shorter, state = type(whisper.model)(config).eval(), whisper.model.state_dict()
    name = "model.encoder.embed_positions.weight"
    shorter.load_state_dict(state | {name: state[name][:n_positions]})
    return OnnxWhisper(shorter, whisper.checkpoint)


def test_fewer_frames_than_a_window_are_answered_like_a_model_of_that_window(whisper: OnnxWhisper, folder: Path, mel: np.ndarray) -> None:
    """sherpa-onnx pads a recording by ten seconds, not to thirty; a graph of fixed frames gives it an empty text and no error."""
    shorter = with_window(whisper, 30)
    opened = WhisperOnnx(folder, whisper.spec)
    opened.encode_mel(mel[:, :60])
    assert np.abs(taken(opened, 8) - shorter.expected(mel[:, :60])).max() < TOLERANCE
    opened.encode_mel(mel[:, :59])  # an odd number: the last position sees one frame less
    assert np.abs(taken(opened, 8) - shorter.expected(mel[:, :60])).max() > TOLERANCE
    with pytest.raises(Exception, match="Add"):  # the runtime's own class: there are only so many positions
        opened.encode_mel(np.concatenate([mel, mel], axis=1))


def test_a_window_is_filled_up_with_silence(model: WhisperOnnx, whisper: OnnxWhisper) -> None:
    short = sound(2, 9_000)
    model.encode(samples(short))
    padded = np.pad(short, (0, whisper.checkpoint.spec.n_samples - len(short)))
    expected = whisper.expected(log_mel(padded, n_mels=whisper.checkpoint.spec.n_mels))
    assert np.abs(taken(model, 8) - expected).max() < TOLERANCE


def test_a_step_says_what_the_decoding_loop_asks(model: WhisperOnnx, whisper: OnnxWhisper) -> None:
    tokens = whisper.checkpoint.spec.tokens
    row = model.steps(TOKEN_IDS[:1], 0)[0]
    step = model.step(TOKEN_IDS[0], 0)
    assert step.logits(3, 7) == pytest.approx(row[3:7].tolist())
    assert step.log_total == pytest.approx(np.log(np.exp(row.astype(np.float64)).sum()), abs=1e-5)
    allowed = [token_id for token_id in range(tokens.end_of_text) if token_id not in tokens.suppressed]
    assert step.text_token == max(allowed, key=row.__getitem__)
    barred = np.zeros_like(row)
    barred[step.text_token] = -np.inf  # the twin: another table of what is never said gives another token
    assert int((row + step.never_text + barred).argmax()) != step.text_token


@pytest.mark.parametrize("name", [ENCODER_NAME, DECODER_NAME])
def test_a_damaged_graph_is_a_bad_file(name: str, whisper: OnnxWhisper, tmp_path: Path) -> None:
    place = whisper.write("fp32", tmp_path)
    (place / name).write_bytes((place / name).read_bytes()[:5000])
    with pytest.raises(FormatError, match=rf"{name} cannot be opened") as caught:
        WhisperOnnx(place, whisper.spec)
    assert caught.value.exit_code == 4
