"""What every benchmark shares: figures with their targets, one record a run, one way to print them."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NoReturn

from benchmarks.machine import ROOT, machine, versions
from toolkit.bench_summary import Summary, summarize
from toolkit.errors import ToolkitError, UsageError
from toolkit.units import format_figure

RESULTS = ROOT / "benchmarks" / "results"
QUIET_CPUS = 0.2


@dataclass(frozen=True)
class Target:
    """A figure to reach.

    Args:
        limit: In the unit the figure's name ends with.
        bound: On which side of `limit` the median has to be.
    """

    bound: Literal["at most", "at least"]
    limit: float

    def is_met(self, value: float) -> bool:
        return value <= self.limit if self.bound == "at most" else value >= self.limit


@dataclass(frozen=True)
class Figure:
    """One measured quantity of one subject, all its values in the order they were taken; the name ends with the unit."""

    subject: str
    name: str
    values: tuple[float, ...]
    target: Target | None = None

    @property
    def summary(self) -> Summary:
        return summarize(self.values)

    @property
    def is_met(self) -> bool:
        """Whether the median meets the target; true without one."""
        return self.target is None or self.target.is_met(self.summary.median)

    def as_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"subject": self.subject, "name": self.name, **asdict(self.summary)}
        if self.target is not None:
            data["target"] = {"bound": self.target.bound, "limit": self.target.limit, "is_met": self.is_met}
        return data


@dataclass
class Report:
    """One run of one benchmark.

    Args:
        benchmark: The module's name.
        settings: What was asked for; names of models and bundles, never paths.
        skipped: What this run left out, with the reason.
        details: Whatever else explains the figures.
    """

    benchmark: str
    settings: dict[str, Any]
    figures: list[Figure] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=versions)
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def add(self, subject: str, name: str, values: Sequence[float], target: Target | None = None) -> None:
        """Add a figure; `values` must not be empty."""
        figure = Figure(subject, name, tuple(values), target)
        assert figure.summary.n == len(values)
        self.figures.append(figure)

    @property
    def missed(self) -> list[Figure]:
        """Figures whose median is on the wrong side of their target."""
        return [figure for figure in self.figures if not figure.is_met]

    def as_dict(self) -> dict[str, Any]:
        names = ("benchmark", "started_at", "settings", "machine", "versions", "skipped", "details")
        return {name: getattr(self, name) for name in names} | {"figures": [figure.as_dict() for figure in self.figures]}

    def append_to(self, folder: Path) -> Path:
        """Add this run as one line to `folder`/BENCHMARK.jsonl."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.benchmark}.jsonl"
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(self.as_dict(), ensure_ascii=False, allow_nan=False) + "\n")
        return path


def paired_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """ours / theirs, round by round: both sides of a ratio were measured next to each other.

    Raises:
        ValueError: The sides have different lengths.
    """
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def table(report: Report) -> str:
    """The run as text for people."""
    rows = [("", "", "n", "min", "median", "max", "target")]
    for position, figure in enumerate(report.figures):
        is_same = position > 0 and report.figures[position - 1].subject == figure.subject
        low, middle, high = (format_figure(figure.name, value) for value in (figure.summary.min, figure.summary.median, figure.summary.max))
        rows.append(("" if is_same else figure.subject, figure.name, str(figure.summary.n), low, middle, high, _verdict(figure)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"{report.benchmark}  {_flat(report.settings)}", f"  {_flat(report.machine)}", f"  {_flat(report.versions)}"]
    for row in rows:
        names = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row[2:-1], widths[2:-1], strict=True)]
        lines.append("  ".join([*names, *numbers, row[-1]]).rstrip())
    lines += [f"skipped {what}: {reason}" for what, reason in report.skipped.items()]
    if (busy := report.machine.get("busy_cpus")) is not None and busy > QUIET_CPUS:
        lines.append(f"others kept {busy:.1f} CPUs busy when this began: its times are no figures of this machine")
    return "\n".join(lines)


def _verdict(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{figure.target.bound} {format_figure(figure.name, figure.target.limit)}: {'met' if figure.is_met else 'MISSED'}"


def _flat(data: dict[str, Any]) -> str:
    return ", ".join(f"{name} {format_figure(name, value) if name.endswith('_bytes') else value}" for name, value in data.items())


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options every benchmark has; `doc` is the module's docstring."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="print the run's record as one JSON object")
    made.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where records are kept (default: benchmarks/results)")
    made.add_argument("--no-record", action="store_true", help="keep no record of this run")
    made.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    return made


def token_counts(text: str, option: str, *, at_least: int) -> list[int]:
    """The numbers of an option like `384,1280`.

    Raises:
        UsageError: One is no number, or below `at_least`.
    """
    counts = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if min(counts) < at_least:
        raise UsageError(f"{option} {text}: no numbers of tokens", why=f"each must be {at_least} or more", fix="write them like 384,1280")
    return counts


def finish(report: Report, args: argparse.Namespace) -> int:
    """Keep and print the run; returns the exit code."""
    if not args.no_record:
        report.append_to(args.results)
    print(json.dumps(report.as_dict(), ensure_ascii=False) if args.json else table(report), flush=True)
    return 1 if args.check and report.missed else 0


def run(measure: Callable[[argparse.Namespace], Report], args: argparse.Namespace) -> int:
    """Measure, keep, print; errors become three lines on stderr and their exit code. SIGTERM cleans up like Ctrl-C does."""
    signal.signal(signal.SIGTERM, leave)
    try:
        return finish(measure(args), args)
    except ToolkitError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def leave(number: int, frame: object) -> NoReturn:
    """A signal handler that lets every `finally` run."""
    raise SystemExit(128 + number)


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)
