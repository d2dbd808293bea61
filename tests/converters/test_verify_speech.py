"""Fidelity of a speech model on a tiny random Whisper: its own float graph is equal to it, and anything else is not."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from converters import speech_clips, verify_speech
from converters.parts import default_parts
from converters.speech_clips import Clip
from converters.speech_reference import LOGITS_NAME, META_NAME, SpeechReference, open_speech_reference
from converters.targets.litert_whisper import TARGET
from converters.verify import measure, reference
from converters.verify_speech import _shared, speech_reference_bytes
from tests.tiny_speech import N_SAMPLES, TOLERANCE, TinySpeech, samples, sound
from toolkit.manifest import Fidelity

# The second is longer than a window, and says more than the decoder holds.
CLIPS = (
    Clip("one", "en", "the best of times", samples(sound(1))),
    Clip("two", "ja", "so many words that they do not fit a decoder", samples(sound(2, N_SAMPLES + 500))),
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reference")


def saying_text(speech: TinySpeech, folder: Path) -> Path:
    """The checkpoint for transformers, told to say text alone: a trained Whisper does by itself, random weights do not."""
    place = folder / "hf"
    shutil.copytree(speech.hf_dir, place)
    path, tokens = place / "generation_config.json", speech.checkpoint.spec.tokens
    config = json.loads(path.read_text())
    config["suppress_tokens"] += range(tokens.end_of_text + 1, speech.checkpoint.spec.vocab_size)
    path.write_text(json.dumps(config))
    return place


def known(speech: TinySpeech, cache: Path, clips: Sequence[Clip] = CLIPS, hf_dir: Any = None) -> SpeechReference:
    """The checkpoint's answers, through the door that `convert` takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speech_clips, "load_clips", lambda: clips)
        answers = reference(speech.checkpoint, hf_dir or (lambda: saying_text(speech, cache)), cache)
    assert isinstance(answers, SpeechReference)
    return answers


@pytest.fixture(scope="module")
def answers(tiny_speech: TinySpeech, cache: Path) -> SpeechReference:
    return known(tiny_speech, cache)


@pytest.fixture(scope="module")
def figures(tiny_speech: TinySpeech, answers: SpeechReference) -> Fidelity:
    return measure(TARGET, tiny_speech.graph, answers, {"word_error_rate_increase": 0.0, "max_abs_logit_error": TOLERANCE})


def test_windows_hold_what_fits_the_model(answers: SpeechReference, tiny_speech: TinySpeech) -> None:
    spec = tiny_speech.checkpoint.spec
    first, second = answers.windows
    assert (first.language, second.language) == ("en", "ja") and first.prompt_ids != second.prompt_ids
    assert first.text_ids[-1] == spec.tokens.end_of_text and len(first.text_ids) < len(second.text_ids)
    assert len(second.prompt_ids) + len(second.text_ids) == spec.max_context_length
    assert [len(answers.samples(index)) for index in (0, 1)] == [N_SAMPLES, N_SAMPLES]


def test_rows_are_those_of_their_window(answers: SpeechReference, tiny_speech: TinySpeech) -> None:
    from toolkit.speech.log_mel import log_mel

    for index, window in enumerate(answers.windows):
        mel = log_mel(np.array(answers.samples(index)), n_mels=tiny_speech.checkpoint.spec.n_mels)
        ids = [*window.prompt_ids, *window.text_ids[:-1]]
        expected = tiny_speech.expected_logits(mel, ids)[len(window.prompt_ids) - 1 :]
        assert np.abs(answers.rows(index, 0, len(window.text_ids)) - expected).max() < 1e-3
        assert np.array_equal(answers.rows(index, 2, 3), answers.rows(index, 0, 5)[2:])


def test_the_float_graph_is_its_checkpoint(figures: Fidelity, answers: SpeechReference) -> None:
    assert figures.verdict == "pass" and abs(figures.kl_mean) < 1e-6
    assert figures.n_tokens == sum(len(window.text_ids) for window in answers.windows)
    assert figures.top1_agreement == 1.0 and figures.perplexity == pytest.approx(figures.reference_perplexity, rel=1e-4)
    assert figures.greedy_tokens_equal == figures.greedy_tokens_compared == sum(len(window.greedy_ids) + 1 for window in answers.windows)
    assert figures.word_error_rate == figures.reference_word_error_rate and figures.word_error_rate_increase == 0.0


def test_a_model_that_hears_other_sound_fails(tiny_speech: TinySpeech, cache: Path, answers: SpeechReference, tmp_path: Path) -> None:
    """The twin: the same graph and the same tokens, the recordings exchanged."""
    for path in answers.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    one, two = (tmp_path / window.sound for window in answers.windows)
    swapped = one.read_bytes(), two.read_bytes()
    one.write_bytes(swapped[1])
    two.write_bytes(swapped[0])
    exchanged = open_speech_reference(tmp_path)
    assert exchanged is not None
    figures = measure(TARGET, tiny_speech.graph, exchanged, {"max_abs_logit_error": TOLERANCE})
    assert figures.verdict == "fail" and figures.max_abs_logit_error > 10 * TOLERANCE


def never() -> Path:
    raise AssertionError("there was nothing to compute")


def test_answers_are_computed_once_for_a_checkpoint_and_its_recordings(
    tiny_speech: TinySpeech, cache: Path, answers: SpeechReference
) -> None:
    assert known(tiny_speech, cache, hf_dir=never).windows == answers.windows
    other = (CLIPS[0], Clip("two", "ja", CLIPS[1].text, samples(sound(3))))
    with pytest.raises(AssertionError, match="nothing to compute"):
        known(tiny_speech, cache, other, hf_dir=never)


DAMAGE = {
    "no logits": lambda folder: (folder / LOGITS_NAME).unlink(),
    "logits cut": lambda folder: (folder / LOGITS_NAME).write_bytes((folder / LOGITS_NAME).read_bytes()[:-4]),
    "no sound": lambda folder: (folder / "sound-0.f32").unlink(),
    "no JSON": lambda folder: (folder / META_NAME).write_text("{"),
    "no windows": lambda folder: (folder / META_NAME).write_text('{"spec": {"vocab_size": 3}}'),
    "a window of another kind": lambda folder: (folder / META_NAME).write_text('{"spec": {"vocab_size": 3}, "windows": [{}]}'),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_answers_that_are_not_whole_are_none(case: str, answers: SpeechReference, tmp_path: Path) -> None:
    for path in answers.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert open_speech_reference(tmp_path) is not None
    DAMAGE[case](tmp_path)
    assert open_speech_reference(tmp_path) is None


def test_a_changed_logit_is_found_by_the_full_check_alone(answers: SpeechReference, tmp_path: Path) -> None:
    for path in answers.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    logits = bytearray((tmp_path / LOGITS_NAME).read_bytes())
    logits[5] ^= 1
    (tmp_path / LOGITS_NAME).write_bytes(logits)
    assert open_speech_reference(tmp_path) is not None and open_speech_reference(tmp_path, full_check=True) is None


def test_the_disk_asked_for_holds_the_answers(answers: SpeechReference, tiny_speech: TinySpeech, monkeypatch: pytest.MonkeyPatch) -> None:
    spec: Any = tiny_speech.checkpoint.spec
    monkeypatch.setattr(speech_clips, "stated_windows", lambda: tuple((clip.text, len(clip.samples)) for clip in CLIPS))
    taken = sum(path.stat().st_size for path in answers.folder.iterdir() if path.suffix == ".f32")
    assert taken <= default_parts().reference_bytes(tiny_speech.checkpoint) == speech_reference_bytes(spec) < 2 * taken


@pytest.mark.parametrize(
    ("ours", "theirs", "n_equal"), [((), (), 1), ((1, 2), (1, 2), 3), ((1, 2, 3), (1, 2), 2), ((1,), (1, 2), 1), ((2,), (1,), 0)]
)
def test_the_end_counts_as_a_token(ours: tuple[int, ...], theirs: tuple[int, ...], n_equal: int) -> None:
    assert _shared(ours, theirs) == n_equal


class Constant:
    """A model that gives one row for each token, or one too few."""

    def __init__(self, n_left_out: int = 0) -> None:
        self.n_left_out = n_left_out

    def hear(self, samples: Sequence[float]) -> None:
        """Any sound."""

    def logits(self, token_ids: Sequence[int], n_prompt: int) -> Iterator[Any]:
        yield np.zeros((len(token_ids) - n_prompt - self.n_left_out, 1771), np.float32)

    def greedy(self, language: str | None, max_tokens: int) -> tuple[int, ...]:
        return ()


def test_a_model_that_leaves_an_answer_out_is_no_model(answers: SpeechReference, monkeypatch: pytest.MonkeyPatch) -> None:
    def here(scorer: Constant) -> dict[str, Any]:
        target = SimpleNamespace(open_speech_scorer=lambda model, spec: scorer)
        monkeypatch.setattr("converters.targets.load_target", lambda name, targets: target)
        return verify_speech.measure_speech_here("litert", "model", str(answers.folder))

    with pytest.raises(ValueError, match="one has .* tokens, the model answered"):
        here(Constant(1))
    flat = here(Constant())
    assert flat["perplexity"] == pytest.approx(1771) and math.isfinite(flat["kl_mean"])
    json.dumps(flat)  # it travels from a child as JSON
