"""What a bench run measured, as one object: n, min, median and max of each figure, ratios of pairs, and what it was measured on."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from toolkit.bench import BenchJob, Side, governor_events
from toolkit.bench_summary import Summary, summarize
from toolkit.device.busy import busy_text, is_busy
from toolkit.device.profile import Device, probe_device
from toolkit.load_mark import versions

FIGURES = (
    "load_s",
    "ttft_s",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
    "peak_rss_bytes",
    "anonymous_rss_bytes",
    "mapped_rss_bytes",
    "energy_j",
    "prefill_j_per_token",
    "decode_j_per_token",
    "temperature_c",
    "held_s",
)
COMPARED = FIGURES[:5] + FIGURES[7:10]  # a ratio of temperatures, or of times the governor held, says nothing


@dataclass
class BenchRecord:
    """One run of `toolkit bench`, while it runs and afterwards.

    Args:
        job: What was asked for.
        sides: The first is what the others are compared with.
        device: What it ran on.
    """

    job: BenchJob
    sides: list[Side]
    device: Device = field(default_factory=probe_device)
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def has_rounds(self) -> bool:
        """Whether anything was measured."""
        return any(side.rounds for side in self.sides)

    @property
    def is_complete(self) -> bool:
        """Whether every round that was asked for was measured."""
        return all(len(side.rounds) == self.job.rounds for side in self.sides)

    @property
    def most_busy_share(self) -> float | None:
        """Of all CPUs, that other programs used before the round where it was most; None where nothing tells."""
        known = [one.busy_share for side in self.sides for one in side.rounds if one.busy_share is not None]
        return max(known, default=None)

    def figure(self, side: Side, name: str) -> Summary | None:
        """A figure over the rounds that told it; None where none did."""
        told = [value for one in side.rounds if (value := one.figures[name]) is not None]
        return summarize(told) if told else None

    def ratio(self, side: Side, name: str) -> Summary | None:
        """First bundle / `side`, round by round; None where a round lacks the figure on either side."""
        pairs = [(ours.figures[name], theirs.figures[name]) for ours, theirs in zip(self.sides[0].rounds, side.rounds, strict=False)]
        ratios = [ours / theirs for ours, theirs in pairs if ours is not None and theirs]
        return summarize(ratios) if ratios and len(ratios) == len(pairs) else None

    def notes(self) -> list[str]:
        """What a reader of the figures must know."""
        notes = []
        if (share := self.most_busy_share) is None:
            notes.append("how busy the machine was with other work is not known here")
        elif is_busy(share):
            notes.append(f"measured on a busy machine: {busy_text(share)}")
        for side in self.sides:
            short = [one.metrics.n_generated_tokens for one in side.rounds if one.metrics.n_generated_tokens < self.job.new_tokens]
            if short:
                notes.append(f"{side.label} ended its answer after {min(short)} of {self.job.new_tokens} tokens")
            if any(one.metrics.is_forced for one in side.rounds):
                notes.append(f"{side.label} runs although its plan does not fit (--force)")
            if any(one.metrics.held_s for one in side.rounds):
                notes.append(f"the governor held {side.label}: its rates are those of a device that slows itself down")
        return notes

    def as_dict(self) -> dict[str, Any]:
        """The object of `--json`; its fields are in docs/guides/bench.md."""
        share = self.most_busy_share
        result: dict[str, Any] = {
            "started_at": self.started_at,
            "settings": asdict(self.job),
            "machine": self._machine(),
            "is_complete": self.is_complete,
            "busy_share": share,
            "was_busy": None if share is None else is_busy(share),
            "bundles": [self._side(side) for side in self.sides],
            "notes": self.notes(),
        }
        if len(self.sides) > 1:
            result["ratios"] = [self._ratios(side) for side in self.sides[1:]]
        return result

    def _machine(self) -> dict[str, Any]:
        told = self.device.as_dict()
        names = ("name", "system", "machine", "total_memory_bytes", "cores", "isa", "accelerators")
        return {name: told[name] for name in names} | {"platform": platform.platform(), "python": platform.python_version()}

    def _side(self, side: Side) -> dict[str, Any]:
        last = side.rounds[-1].metrics if side.rounds else None
        figures = {name: self.figure(side, name) for name in FIGURES}
        return {
            "label": side.label,
            "bundle": side.bundle.name,
            "backend": None if last is None else last.backend,
            "versions": None if last is None else versions(last.backend),
            "threads": None if last is None else last.threads,
            "context_length": None if last is None else last.context_length,
            "is_isolated": None if last is None else last.is_isolated,
            "is_forced": None if last is None else last.is_forced,
            "energy_meter": None if last is None else last.energy_meter,
            "n_prompt_tokens": [one.metrics.n_prompt_tokens for one in side.rounds],
            "n_generated_tokens": [one.metrics.n_generated_tokens for one in side.rounds],
            "figures": {name: None if told is None else asdict(told) for name, told in figures.items()},
            "governor_events": governor_events(side.rounds),
        }

    def _ratios(self, side: Side) -> dict[str, Any]:
        told = {name: self.ratio(side, name) for name in COMPARED}
        figures = {name: None if ratio is None else asdict(ratio) for name, ratio in told.items()}
        return {"label": self.sides[0].label, "to": side.label, "figures": figures}
