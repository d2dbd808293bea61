"""Measures bundles turn by turn: each round opens one in a fresh process, warms it up, and takes the figures of one answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolkit.bench_prompt import MEASURED, WARM_UP, make_prompt
from toolkit.bench_summary import interleaved
from toolkit.bundle import Bundle
from toolkit.device.busy import busy_text, is_busy
from toolkit.engine import Engine
from toolkit.errors import ToolkitError
from toolkit.helper_processes import status_bytes
from toolkit.power.sources import read_device
from toolkit.worker_proxy import RemoteEngine

if TYPE_CHECKING:
    from toolkit.metrics import Metrics

_SAMPLE_S = 0.02


@dataclass(frozen=True)
class BenchJob:
    """What every round does.

    Args:
        rounds: Measured ones of each bundle; one before them warms the machine up.
        prompt_tokens, new_tokens: Of the answer that is measured, and of the one before it that warms the engine up.
        context_length: Of the KV cache; None: as few as the work needs.
        threads: None: as `Engine.open` chooses.
        in_process: Keep the engine in this process.
        force: Load what does not fit, and compare on a busy machine.
    """

    rounds: int = 5
    prompt_tokens: int = 256
    new_tokens: int = 64
    context_length: int | None = None
    threads: int | None = None
    in_process: bool = False
    force: bool = False


@dataclass(frozen=True)
class Round:
    """One round of one bundle; None where this system, or so short an answer, does not tell.

    Args:
        figures: By name, in the order of `bench_record.FIGURES`.
        metrics: Of the measured answer.
        busy_share: Of all CPUs, that other programs used just before.
    """

    figures: dict[str, float | None]
    metrics: Metrics
    busy_share: float | None


@dataclass
class Side:
    """One bundle on one backend, and what was measured of it so far."""

    label: str
    bundle: Bundle
    backend: str | None
    rounds: list[Round] = field(default_factory=list)
    prompts: tuple[str, str] | None = None  # warm-up, measured; made when its tokenizer is first loaded


def measure_sides(sides: list[Side], job: BenchJob, *, say: Callable[[str], None], probe_busy: Callable[[], float | None]) -> None:
    """Fill the sides round by round; whatever ends it early, the rounds before stay in them.

    Args:
        say: Told after each measurement.
        probe_busy: Asked before each measurement, like `measure_busy_share`.

    Raises:
        ToolkitError: Two sides were to be compared and the machine is busy with something else.
        BudgetError, EngineError, UsageError: See `Engine.open` and `Session.send`.
    """
    is_alone = len(sides) == 1
    # Round 0 is thrown away: it reads files from the disk and packs weights. It runs backwards, so that round 1 is in the order asked for.
    for number, side in interleaved(sides[::-1], job.rounds + 1):
        busy_share = probe_busy()
        if not is_alone and not job.force and is_busy(busy_share):
            raise _too_busy(busy_share or 0.0)
        one = _measure(side, job, busy_share, is_alone=is_alone)
        if number:
            side.rounds.append(one)
        say(_progress(number, side, job, one))


def _too_busy(share: float) -> ToolkitError:
    return ToolkitError(
        "bundles are not compared while the machine is busy",
        why=f"{busy_text(share)}; more than a quarter of them makes a ratio a matter of luck",
        fix="end those programs or wait, then run it again; --force compares all the same, and the record says so",
    )


def _progress(number: int, side: Side, job: BenchJob, one: Round) -> str:
    where = f"round {number} of {job.rounds}" if number else "warm-up"
    rate = one.metrics.decode_tokens_per_s
    return f"{where}: {side.label}" + ("" if rate is None else f" decodes {rate:.1f} tokens/s")


def _measure(side: Side, job: BenchJob, busy_share: float | None, *, is_alone: bool) -> Round:
    with Engine.open(
        side.bundle,
        context_length=job.context_length,
        threads=job.threads,
        backend=side.backend,
        expected_tokens=job.prompt_tokens + job.new_tokens,
        force=job.force,
        isolated=False if job.in_process else None,
    ) as engine:
        load_s = engine.load_s
        warm_up, measured = side.prompts = side.prompts or _prompts(engine, job)
        with _MemorySampler(engine) as sampler:
            _answer(engine, warm_up, job.new_tokens)
        metrics = _answer(engine, measured, job.new_tokens)
        temperature_c = read_device().temperature_c
    # One process that opens several bundles has one peak, which is none of theirs.
    has_own_peak = is_alone or metrics.is_isolated
    figures = {
        "load_s": load_s,
        "ttft_s": metrics.ttft_s,
        "prefill_tokens_per_s": metrics.prefill_tokens_per_s,
        "decode_tokens_per_s": metrics.decode_tokens_per_s,
        "peak_rss_bytes": metrics.peak_rss_bytes if has_own_peak else None,
        "anonymous_rss_bytes": sampler.anonymous_bytes if has_own_peak else None,
        "mapped_rss_bytes": sampler.mapped_bytes if has_own_peak else None,
        "energy_j": metrics.energy_j,
        "prefill_j_per_token": metrics.prefill_j_per_token,
        "decode_j_per_token": metrics.decode_j_per_token,
        "temperature_c": temperature_c,
        "held_s": metrics.held_s,
    }
    return Round(figures, metrics, busy_share)


def _prompts(engine: Engine, job: BenchJob) -> tuple[str, str]:
    def count(text: str) -> int:
        return len(engine.tokenize(text)) + engine.native.n_start_tokens

    return make_prompt(count, job.prompt_tokens, text=WARM_UP), make_prompt(count, job.prompt_tokens, text=MEASURED)


def _answer(engine: Engine, prompt: str, n_tokens: int) -> Metrics:
    """Without the chat template, so that the prompt has the tokens that were asked for."""
    with engine.plain_session() as session:
        for _ in session.send(prompt, max_tokens=n_tokens):
            pass
        assert session.metrics is not None
        return session.metrics


class _MemorySampler:
    """Looks at the engine's process while the warm-up answer runs, so that the looking costs no figure.

    Attributes:
        anonymous_bytes, mapped_bytes: The largest seen of each; None where the system does not tell them apart.
    """

    def __init__(self, engine: Engine) -> None:
        native = engine.native
        self._pid = native.worker.pid if isinstance(native, RemoteEngine) else None
        self.anonymous_bytes: int | None = None
        self.mapped_bytes: int | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-memory", daemon=True)

    def __enter__(self) -> _MemorySampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._is_over.wait(_SAMPLE_S):
            self._look()

    def _look(self) -> None:
        sizes = status_bytes(self._pid)
        if "RssAnon" not in sizes or "RssFile" not in sizes:
            return
        self.anonymous_bytes = max(self.anonymous_bytes or 0, sizes["RssAnon"])
        self.mapped_bytes = max(self.mapped_bytes or 0, sizes["RssFile"] + sizes.get("RssShmem", 0))


def make_sides(bundles: list[Bundle], backends: list[str | None]) -> list[Side]:
    """One side for each bundle, labelled so that no two are alike."""
    sides: list[Side] = []
    for bundle, backend in zip(bundles, backends, strict=True):
        label = next(name for name in _labels(bundle, backend) if all(name != side.label for side in sides))
        sides.append(Side(label, bundle, backend))
    return sides


def _labels(bundle: Bundle, backend: str | None) -> Iterator[str]:
    yield bundle.name
    if backend is not None:
        yield f"{bundle.name} ({backend})"
    number = 2
    while True:
        yield f"{bundle.name} #{number}"
        number += 1


def governor_events(rounds: list[Round]) -> list[dict[str, Any]]:
    """Every change of the governor's state, each with the round it fell into."""
    return [{"round": number, **event} for number, one in enumerate(rounds, 1) for event in one.metrics.governor_events]
