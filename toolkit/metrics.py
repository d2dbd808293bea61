"""What one answer cost, measured."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from toolkit.helper_processes import status_bytes

if TYPE_CHECKING:
    from toolkit.answer import Answer
    from toolkit.engine import Engine


@dataclass(frozen=True)
class Metrics:
    """Measurements of one `send`. A rate is None when too little was done to measure it.

    Args:
        ttft_s: From the call of `send` to the first text; None if none came.
        total_s: From the call of `send` to its end.
        prefill_tokens_per_s: Prompt tokens over the engine's own prefill time, or over `ttft_s` where it tells none.
        decode_tokens_per_s: Generated tokens over the engine's own decode time, or over the time after the first text.
        n_prompt_tokens: Tokens prefilled by this `send`: new text only when the KV cache already holds the rest.
        n_generated_tokens: Tokens decoded, a stop token included. While an answer is cut short by us (cancelled, stop
            string, budget) it counts pieces of text, which may be a few tokens less.
        load_s: Opening the engine, the last time it was opened.
        peak_rss_bytes: Highest resident memory so far of the process the engine runs in; None where the system does not tell.
        context_length: Tokens the KV cache holds.
        threads: CPU threads the engine uses.
        backend: The backend that ran.
        is_isolated: The engine has a process of its own.
        is_forced: It runs although its plan does not fit.
        n_restarts: How often the engine was loaded again because its process was gone.
        governor_events: Changes of the governor's state while it ran, before them the one in force when it began; see `GovernorEvent`.
        held_s: How long the governor held the engine.
        energy_j: What the whole device used meanwhile; None where no meter told.
        energy_meter: Which did: "battery" or "rapl".
        prefill_j_per_token: Of it, until the first text, for each prompt token.
        decode_j_per_token: Of it, afterwards, for each generated token.
    """

    ttft_s: float | None
    total_s: float
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    n_prompt_tokens: int
    n_generated_tokens: int
    load_s: float
    peak_rss_bytes: int | None
    context_length: int
    threads: int
    backend: str
    is_isolated: bool = False
    is_forced: bool = False
    n_restarts: int = 0
    governor_events: tuple[dict[str, Any], ...] = ()
    held_s: float = 0.0
    energy_j: float | None = None
    energy_meter: str | None = None
    prefill_j_per_token: float | None = None
    decode_j_per_token: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The `metrics` object of `--json`."""
        return asdict(self)


def metrics_of(engine: Engine, answer: Answer) -> Metrics:
    """What an answer that has ended cost."""
    figures = answer.figures
    return Metrics(
        ttft_s=answer.ttft_s,
        total_s=answer.total_s,
        prefill_tokens_per_s=figures.prefill_tokens_per_s,
        decode_tokens_per_s=figures.decode_tokens_per_s,
        n_prompt_tokens=figures.n_prompt_tokens,
        n_generated_tokens=figures.n_generated_tokens,
        load_s=engine.load_s,
        peak_rss_bytes=engine.peak_rss_bytes(),
        context_length=engine.context_length,
        threads=engine.threads,
        backend=engine.backend,
        is_isolated=engine.is_isolated,
        is_forced=engine.plan.is_forced,
        n_restarts=engine.n_restarts,
        **_watched(answer),
    )


def _watched(answer: Answer) -> dict[str, Any]:
    """What governor and meter say of it."""
    if (watch := answer.watch) is None:
        return {}
    told: dict[str, Any] = {"governor_events": tuple(event.as_dict() for event in watch.events), "held_s": watch.held_s}
    if (energy := watch.energy) is None:
        return told
    told |= {"energy_j": energy.energy_j, "energy_meter": energy.meter.value}
    figures = answer.figures
    if energy.prefill_j is not None:
        told["prefill_j_per_token"] = _per_token(energy.prefill_j, figures.n_prompt_tokens)
        told["decode_j_per_token"] = _per_token(energy.energy_j - energy.prefill_j, figures.n_generated_tokens)
    return told


def _per_token(energy_j: float, n_tokens: int) -> float | None:
    return energy_j / n_tokens if n_tokens else None


def measure_peak_rss_bytes(pid: int | None = None) -> int | None:
    """Highest resident memory of a process (None: this one) since it began, or None where the system does not tell.

    Linux and Android: VmHWM of /proc/self/status (`ru_maxrss` would start at the parent's peak). macOS: `ru_maxrss`. The peaks of
    programs that an engine has started are added: at most a little more than what was held at one time.
    """
    if (size := status_bytes(pid).get("VmHWM")) is not None:
        return size
    if sys.platform == "win32" or pid is not None:
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure_rss_bytes(pid: int | None = None) -> int | None:
    """Resident memory of a process (None: this one) and its engine's programs now, or None where /proc is missing or it is gone."""
    return status_bytes(pid).get("VmRSS")
