from __future__ import annotations

import array

import pytest

from tests.toolkit.speech.whisper_rules import TOKENS
from toolkit.speech.transcription import split_window
from toolkit.speech.whisper_decoding import WindowResult

WINDOW = 480_000


def time(seconds: float) -> int:
    return TOKENS.timestamp_begin + round(seconds * 50)


def result(*ids: int) -> WindowResult:
    return WindowResult(ids, "en", 0.0, -0.1, True)


CASES: dict[str, tuple[tuple[int, ...], int, list[tuple[float, float, tuple[int, ...]]], int]] = {
    "text between two times is finished": ((time(0), 5, 6, time(9)), WINDOW, [(0.0, 9.0, (5, 6))], WINDOW),
    "a pair at the end means that the window cut it": (
        (time(0), 5, time(4), time(4), 6, time(20), time(20)),
        WINDOW,
        [(0.0, 4.0, (5,)), (4.0, 20.0, (6,))],
        320_000,
    ),
    "a pair and one time is finished": ((time(1), 5, time(4), time(6), 6, time(28)), WINDOW, [(1.0, 4.0, (5,)), (6.0, 28.0, (6,))], WINDOW),
    "text after the last pair is left to the next window": ((time(0), 5, time(4), time(5), 6), WINDOW, [(0.0, 4.0, (5,))], 64_000),
    "no times at all": ((5, 6), 32_000, [(0.0, 2.0, (5, 6))], 32_000),
    "nothing": ((), 32_000, [], 32_000),
    "a time alone": ((time(0),), 32_000, [], 32_000),
    "times past the end of the sound": ((time(0), 5, time(29)), 32_000, [(0.0, 2.0, (5,))], 32_000),
}


@pytest.mark.parametrize("case", CASES)
def test_an_answer_is_split_where_times_meet(case: str) -> None:
    ids, n_samples, expected, taken = CASES[case]
    found, n_taken = split_window(result(*ids), TOKENS, n_samples=n_samples)
    assert (found, n_taken) == (expected, taken)


def test_a_model_that_finds_no_end_does_not_hang() -> None:
    from toolkit.speech.transcription import transcribe

    class Stuck:
        tokens, n_samples, max_context_length = TOKENS, 16_000, 60

        def __init__(self) -> None:
            self.n_windows = 0

        def encode(self, samples: array.array[float]) -> None:
            self.n_windows += 1

        def step(self, token_id: int, position: int) -> Step:
            return Step(position)

    class Step:
        """Says: 0.00, a word, 0.00, 0.00, the end."""

        text_token, log_total = 5, 0.0

        def __init__(self, position: int) -> None:
            self.position = position

        def logits(self, start: int, stop: int) -> array.array[float]:
            values = array.array("f", [-20.0]) * (stop - start)
            liked = {2: time(0), 3: 5, 4: time(0.02), 5: time(0.02), 6: TOKENS.end_of_text}.get(self.position)
            if liked is not None and start <= liked < stop:
                values[liked - start] = -0.01
            return values

    class Words:
        def text(self, token_ids: tuple[int, ...]) -> str:
            return " word" * len(token_ids)

    model = Stuck()
    transcript = transcribe(model, Words(), array.array("f", bytes(4 * 16_000)))
    assert model.n_windows == 10  # a tenth of a second each time, at least
    assert all(segment.end_s <= transcript.duration_s for segment in transcript.segments)
