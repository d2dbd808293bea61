"""The table `convert` ends with: a line for each bundle, a reason for each that is not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.units import format_bytes

COLUMNS = ("bundle", "size", "bits/weight", "KL mean", "KL p99", "top-1", "ppl ratio", "verdict")


def bundle_table(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines of the table, the header first.

    Args:
        entries: What `--json` lists as `bundles`.
    """
    rows = [COLUMNS, *map(_row, entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)), row[-1]])
        for row in rows
    ]


def fit_table(frontier: Iterable[Mapping[str, Any]], bundles: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines of a search's table: everything that was tried, and a reason for each target that got no bundle.

    Args:
        frontier: What `--json` lists as `frontier`.
        bundles: What `--json` lists as `bundles`.
    """
    tried = [{**entry, "verdict": _fit_verdict(entry), "is_new": True} for entry in frontier]
    return bundle_table([*tried, *(entry for entry in bundles if entry["verdict"] == "error")])


def _fit_verdict(entry: Mapping[str, Any]) -> str:
    if entry["verdict"] in ("error", "fail"):
        return str(entry["verdict"])  # `_row` adds why to an error
    return "chosen" if entry["is_chosen"] else "fits" if entry["fits"] else "too large"


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    verdict = entry["verdict"] if entry["is_new"] else f"{entry['verdict']} (there already)"
    if entry["verdict"] == "error":
        verdict = f"error: {entry['error']['why'] or entry['error']['what']}"
    return (
        str(entry["path"] or entry["name"]),
        "-" if entry["bytes"] is None else format_bytes(entry["bytes"]),
        _figure(entry["bits_per_weight"], "{:.2f}"),
        _figure(entry["kl_mean"], "{:z.4f}"),
        _figure(entry["kl_p99"], "{:z.3f}"),
        "-" if entry["top1_agreement"] is None else f"{100 * entry['top1_agreement']:.1f} %",
        _figure(entry["perplexity_ratio"], "{:.4f}"),
        verdict,
    )


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
