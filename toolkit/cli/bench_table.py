"""A bench run as text for people."""

from __future__ import annotations

from toolkit.bench import Side, governor_events
from toolkit.bench_record import COMPARED, FIGURES, BenchRecord
from toolkit.bench_summary import Summary
from toolkit.cli.output import printable
from toolkit.load_mark import versions
from toolkit.units import format_figure

_NAMES = {
    "load_s": "load",
    "ttft_s": "first token",
    "prefill_tokens_per_s": "prefill",
    "decode_tokens_per_s": "decode",
    "peak_rss_bytes": "peak RSS",
    "anonymous_rss_bytes": "  anonymous",
    "mapped_rss_bytes": "  mapped files",
    "energy_j": "energy",
    "prefill_j_per_token": "  a prompt token",
    "decode_j_per_token": "  a new token",
    "temperature_c": "temperature",
    "held_s": "held by governor",
}
_UNTOLD = "unknown"
_SHOWN_WHEN_TOLD = ("anonymous_rss_bytes", "mapped_rss_bytes", "prefill_j_per_token", "decode_j_per_token", "held_s")


def table(record: BenchRecord) -> str:
    """Each bundle's figures, the ratios, and what must be known to read them."""
    job = record.job
    lines = [f"{job.prompt_tokens} + {job.new_tokens} tokens, {job.rounds} rounds after one to warm up; {record.device.name}"]
    for side in record.sides:
        if side.rounds:
            lines += ["", *_side(record, side)]
    for side in record.sides[1:]:
        if side.rounds and record.sides[0].rounds:
            lines += ["", *_ratios(record, side)]
    lines += ["", *notes] if (notes := record.notes()) else []
    if not record.is_complete:
        counts = ", ".join(f"{len(side.rounds)} of {side.label}" for side in record.sides)
        lines.append(f"ended early: {counts}, of {job.rounds} rounds each")
    return "\n".join(printable(line) for line in lines)


def _side(record: BenchRecord, side: Side) -> list[str]:
    metrics = side.rounds[-1].metrics
    where = "its own process" if metrics.is_isolated else "this process"
    told = f"{metrics.backend}, {metrics.threads} threads, context {metrics.context_length}, in {where}; {versions(metrics.backend)}"
    rows: list[tuple[str, ...]] = [("", "n", "min", "median", "max")]
    for name in FIGURES:
        summary = record.figure(side, name)
        if name in _SHOWN_WHEN_TOLD and (summary is None or summary.max == 0):
            continue
        rows.append((_NAMES[name], *_cells(name, summary)))
    lines = [f"{side.label}  ({told})", *_aligned(rows)]
    for event in governor_events(side.rounds):
        lines.append(f"  round {event['round']}: governor {event['state']} ({event['why']})")
    return lines


def _cells(name: str, summary: Summary | None) -> tuple[str, str, str, str]:
    if summary is None:
        return ("", "", _UNTOLD, "")
    low, middle, high = (format_figure(name, value) for value in (summary.min, summary.median, summary.max))
    return (str(summary.n), low, middle, high)


def _ratios(record: BenchRecord, side: Side) -> list[str]:
    n_pairs = min(len(record.sides[0].rounds), len(side.rounds))
    rows = [("", "min", "median", "max", *(f"round {number}" for number in range(1, n_pairs + 1)))]
    for name in COMPARED:
        if (ratio := record.ratio(side, name)) is not None:
            rows.append((_NAMES[name], *(f"{value:.3f}" for value in (ratio.min, ratio.median, ratio.max, *ratio.values))))
    return [f"{record.sides[0].label} / {side.label}", *_aligned(rows)]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for name, *cells in rows:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        lines.append("  ".join(["  " + name.ljust(widths[0]), *numbers]).rstrip())
    return lines
