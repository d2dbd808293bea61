from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.toolkit.fake_backend import END, FakeBackend
from tests.toolkit.small_manifest import small_bundle
from toolkit.bench import BenchJob, Side, make_sides, measure_sides
from toolkit.bench_prompt import MEASURED, WARM_UP
from toolkit.bench_record import COMPARED, FIGURES, BenchRecord
from toolkit.bundle import Bundle
from toolkit.errors import EngineError, ToolkitError
from toolkit.power.reading import Reading

NEW_TOKENS = 6


class Recorded(FakeBackend):
    """Answers whatever it is asked and notes what was opened, by the bundle's name."""

    def __init__(self, answer: str = "answer") -> None:
        super().__init__()
        self.engine.answers = [answer] * 100
        self.names: list[str] = []

    def open_engine(self, bundle: Bundle, **options: Any) -> Any:
        engine = super().open_engine(bundle, **options)
        self.names.append(bundle.name)
        return engine


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    backend = Recorded()
    monkeypatch.setattr("toolkit.engine.load_backend", lambda name: backend)
    monkeypatch.setattr("toolkit.bench.read_device", lambda: Reading(temperature_c=41.5))
    return backend


@pytest.fixture
def make(tmp_path: Path, own_folders: Path) -> Callable[..., list[Side]]:
    def sides(*names: str) -> list[Side]:
        folders = [small_bundle(tmp_path / name, name=name, stop_token_ids=(0x2402,)) for name in names]
        return make_sides([Bundle.open(folder) for folder in folders], [None] * len(names))

    return sides


def measure(sides: list[Side], job: BenchJob, *, busy: float | None = 0.0) -> list[str]:
    said: list[str] = []
    measure_sides(sides, job, say=said.append, probe_busy=lambda: busy)
    return said


def job(rounds: int = 2, **changes: Any) -> BenchJob:
    return BenchJob(rounds=rounds, prompt_tokens=40, new_tokens=NEW_TOKENS, **changes)


def test_sides_take_turns_in_reverse_order_every_other_round_after_one_that_is_thrown_away(
    make: Callable[..., list[Side]], backend: Recorded
) -> None:
    sides = make("a", "b")
    said = measure(sides, job(3))
    assert backend.names == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert [len(side.rounds) for side in sides] == [3, 3]
    assert [line.partition(":")[0] for line in said] == ["warm-up"] * 2 + [f"round {n} of 3" for n in (1, 1, 2, 2, 3, 3)]


def test_each_round_warms_up_with_one_prompt_and_measures_another_both_of_the_length_asked_for(
    make: Callable[..., list[Side]], backend: Recorded
) -> None:
    measure(make("a"), job(2))
    texts = [text for _, text in backend.engine.started]
    assert len(texts) == 2 * 3 and {len(text) for text in texts} == {40}
    assert {text[:20] for text in texts[::2]} == {WARM_UP[:20]} and {text[:20] for text in texts[1::2]} == {MEASURED[:20]}
    assert {session.max_tokens for session in backend.engine.sessions} == {NEW_TOKENS}
    assert len({id(session) for session in backend.engine.sessions}) == len(texts), "no answer goes on from another's cache"


def test_a_round_holds_every_figure_and_none_that_nobody_told(make: Callable[..., list[Side]], backend: Recorded) -> None:
    sides = make("a")
    measure(sides, job(1), busy=0.125)
    (one,) = sides[0].rounds
    assert tuple(one.figures) == FIGURES
    assert one.figures["temperature_c"] == 41.5 and one.busy_share == 0.125
    assert one.figures["prefill_tokens_per_s"] is None and one.figures["decode_tokens_per_s"] is None, "this engine tells no rates"
    assert one.figures["energy_j"] is None or one.metrics.energy_meter is not None
    assert one.figures["ttft_s"] is not None and one.metrics.n_prompt_tokens == 40


def test_one_process_that_opens_several_bundles_has_no_peak_of_each(make: Callable[..., list[Side]], backend: Recorded) -> None:
    alone, both = make("a"), make("b", "c")
    measure(alone, job(1))
    measure(both, job(1))
    memory = ("peak_rss_bytes", "anonymous_rss_bytes", "mapped_rss_bytes")
    assert [both[0].rounds[0].figures[name] for name in memory] == [None] * 3
    if Path("/proc/self/status").exists():
        told = [alone[0].rounds[0].figures[name] for name in memory]
        assert all(size is not None and size > 2**20 for size in told)


def test_sides_are_not_compared_while_the_machine_is_busy(make: Callable[..., list[Side]], backend: Recorded) -> None:
    with pytest.raises(ToolkitError) as caught:
        measure(make("a", "b"), job(), busy=0.3)
    assert caught.value.exit_code == 1 and "CPUs busy" in caught.value.why and "--force" in caught.value.fix
    assert backend.names == [], "nothing is loaded for figures that are thrown away"


@pytest.mark.parametrize(("names", "is_forced"), [(("a",), False), (("a", "b"), True)])
def test_alone_or_forced_a_busy_machine_is_measured_and_the_record_says_so(
    names: tuple[str, ...], is_forced: bool, make: Callable[..., list[Side]], backend: Recorded
) -> None:
    sides = make(*names)
    measure(sides, job(1, force=is_forced), busy=0.3)
    record = BenchRecord(job(1, force=is_forced), sides)
    told = record.as_dict()
    assert told["was_busy"] is True and told["busy_share"] == 0.3 and told["settings"]["force"] is is_forced
    assert any("busy machine" in note for note in told["notes"])


def test_work_that_begins_in_between_ends_the_comparison_and_keeps_the_rounds_before(
    make: Callable[..., list[Side]], backend: Recorded
) -> None:
    sides, shares = make("a", "b"), iter([0.0] * 5 + [0.9])
    with pytest.raises(ToolkitError, match="busy"):
        measure_sides(sides, job(3), say=lambda text: None, probe_busy=lambda: next(shares))
    record = BenchRecord(job(3), sides)
    assert [len(side.rounds) for side in sides] == [1, 2] and record.has_rounds and not record.is_complete
    ratio = record.ratio(sides[1], "ttft_s")
    assert ratio is not None and ratio.n == 1, "rounds are compared in pairs"


def test_an_engine_that_fails_keeps_the_rounds_before(make: Callable[..., list[Side]], backend: Recorded) -> None:
    sides = make("a")
    backend.engine.answers = ["answer"] * 4

    def fail_when_used_up() -> None:
        if not backend.engine.answers:
            raise EngineError("the engine failed", fix="ask again")

    backend.engine.on_start = fail_when_used_up
    with pytest.raises(EngineError):
        measure(sides, job(5))
    assert len(sides[0].rounds) == 1


def test_an_answer_that_ends_early_is_noted(make: Callable[..., list[Side]], backend: Recorded) -> None:
    sides = make("a")
    backend.engine.answers = ["ab" + END] * 10
    measure(sides, job(1))
    assert BenchRecord(job(1), sides).notes() == ["a ended its answer after 3 of 6 tokens"]


def test_labels_are_never_alike(make: Callable[..., list[Side]]) -> None:
    bundle = make("a")[0].bundle
    sides = make_sides([bundle] * 5, ["gguf", "reference", "reference", None, None])
    assert [side.label for side in sides] == ["a", "a (reference)", "a #2", "a #3", "a #4"]


def test_ratios_are_of_the_first_bundle_to_another_in_the_same_round(make: Callable[..., list[Side]], backend: Recorded) -> None:
    sides = make("a", "b")
    measure(sides, job(2))
    for side, values in zip(sides, ([4.0, 9.0], [2.0, 3.0]), strict=True):
        for one, value in zip(side.rounds, values, strict=True):
            one.figures["load_s"] = value
    told = BenchRecord(job(2), sides).as_dict()["ratios"]
    assert [(ratio["label"], ratio["to"]) for ratio in told] == [("a", "b")]
    assert tuple(told[0]["figures"]) == COMPARED
    assert told[0]["figures"]["load_s"]["values"] == (2.0, 3.0)
    sides[1].rounds[0].figures["load_s"] = None
    assert BenchRecord(job(2), sides).ratio(sides[1], "load_s") is None, "half of the pairs are no comparison"
