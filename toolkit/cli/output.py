"""How commands print: text as it comes, JSON, two-column tables, one line of metrics."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from toolkit.answer import FinishReason
from toolkit.metrics import Metrics
from toolkit.units import format_bytes

INTERRUPTED = 130
_KEPT_CONTROLS = "\n\t"


def print_json(result: Mapping[str, Any]) -> None:
    """Print the one JSON object of `--json`."""
    print(json.dumps(result, indent=2, ensure_ascii=False))


def print_interrupted(*, as_json: bool, said: str = "interrupted") -> None:
    """What a command says that was left before it had a result."""
    if as_json:
        error = {"what": "interrupted", "why": "", "fix": "run the same command again", "code": INTERRUPTED}
        print_json({"error": error})
    print(said, file=sys.stderr)


def print_piece(text: str, stream: TextIO | None = None) -> None:
    """Print generated text at once. On a terminal control characters are dropped: a model must not move the cursor."""
    stream = stream or sys.stdout
    stream.write(printable(text) if stream.isatty() else text)
    stream.flush()


def printable(text: str) -> str:
    """`text` without control characters, except line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(char for char in text if char in _KEPT_CONTROLS or not (ord(char) < 32 or 127 <= ord(char) < 160))


def print_rows(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns; further lines of a value are indented to its column."""
    pairs = list(rows)
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        first, *rest = value.splitlines() or [""]
        print(f"{name.ljust(width)}  {printable(first)}".rstrip())
        for line in rest:
            print(f"{' ' * width}  {printable(line)}".rstrip())


def metrics_line(metrics: Metrics, reason: FinishReason) -> str:
    """One line for people: `stop: 16 + 8 tokens, first after 0.09 s, prefill 312, decode 98.1 tokens/s, peak 326 MiB`."""
    parts = [f"{reason.value}: {metrics.n_prompt_tokens} + {metrics.n_generated_tokens} tokens"]
    if metrics.ttft_s is not None:
        parts.append(f"first after {metrics.ttft_s:.2f} s")
    rates = {"prefill": metrics.prefill_tokens_per_s, "decode": metrics.decode_tokens_per_s}
    told = [f"{name} {rate:.{0 if rate >= 200 else 1}f}" for name, rate in rates.items() if rate is not None]
    if told:
        parts.append(", ".join(told) + " tokens/s")
    if metrics.peak_rss_bytes is not None:
        parts.append(f"peak {format_bytes(metrics.peak_rss_bytes)}")
    if metrics.energy_j is not None:
        parts.append(f"{metrics.energy_j:.3g} J by the {'battery' if metrics.energy_meter == 'battery' else 'processor'}")
    if metrics.governor_events:
        states = " > ".join(event["state"] for event in metrics.governor_events)
        parts.append(f"governor {states}, held {metrics.held_s:.1f} s ({metrics.governor_events[-1]['why']})")
    return ", ".join(parts) + f" ({metrics.backend}, {metrics.threads} threads, context {metrics.context_length})"
