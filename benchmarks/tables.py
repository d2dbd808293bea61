"""The newest kept run of each benchmark as Markdown, for documents: figures with a target, or all of them.

python -m benchmarks.tables [--all] [--results benchmarks/results]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS
from toolkit.errors import FormatError, ToolkitError
from toolkit.units import format_figure

_HEAD = ("| figure | n | min | median | max | target | |", "|---|---|---|---|---|---|---|")


def newest_runs(folder: Path) -> list[dict[str, Any]]:
    """The last record of each benchmark and what it was given (model or bundles), by name.

    Raises:
        FormatError: A line is no record.
    """
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
            try:
                record = json.loads(line)
                given = [record["settings"].get(name) for name in ("model", "bundle", "bundles")]
                newest[record["benchmark"], json.dumps(given)] = record
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                what = f"{path.name}, line {number}, is no record of a run"
                raise FormatError(what, why=f"{type(error).__name__}: {error}", fix="remove that line") from error
    return [newest[key] for key in sorted(newest)]


def markdown(record: dict[str, Any], *, is_all: bool) -> str:
    """One run as a heading, a table and a line on where it was measured; nothing when it has no figure to show."""
    rows = [_row(figure) for figure in record["figures"] if is_all or "target" in figure]
    if not rows:
        return ""
    machine, versions = record["machine"], record["versions"]
    where = f"{machine['cpu']}, {machine['n_cpus']} CPUs, {machine['busy_cpus']} busy, Python {machine['python']}"
    what = record["settings"].get("model", "")
    measured = f"{record['started_at']}; {where}; {', '.join(f'{name} {version}' for name, version in versions.items())}"
    return "\n".join([f"### {record['benchmark']} {what}".rstrip(), "", *_HEAD, *rows, "", measured, ""])


def _row(figure: dict[str, Any]) -> str:
    name, target = figure["name"], figure.get("target")
    low, middle, high = (format_figure(name, figure[column]) for column in ("min", "median", "max"))
    verdict = f"{target['bound']} {format_figure(name, target['limit'])} | {'met' if target['is_met'] else '**missed**'}" if target else "|"
    return f"| {figure['subject']}: {name} | {figure['n']} | {low} | {middle} | {high} | {verdict} |"


def render(records: Iterable[dict[str, Any]], *, is_all: bool) -> str:
    """All runs, one below the other."""
    return "\n".join(filter(None, (markdown(record, is_all=is_all) for record in records)))


def main() -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="figures without a target too")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where records are (default: benchmarks/results)")
    args = parser.parse_args()
    try:
        print(render(newest_runs(args.results), is_all=args.all), end="")
    except ToolkitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
