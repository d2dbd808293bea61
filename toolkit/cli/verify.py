"""`toolkit verify`: are these the bytes that were published, and how faithful are they?"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolkit.bundle import Bundle
from toolkit.cli.inspect import fidelity_text
from toolkit.cli.output import print_json, print_rows
from toolkit.errors import FidelityError
from toolkit.manifest import Fidelity
from toolkit.plugins import call_plugin
from toolkit.progress import byte_progress
from toolkit.units import format_bytes

_EXAMPLES = """\
examples:
  toolkit verify bundles/smollm2-135m-instruct-litert-int8
  toolkit verify BUNDLE --fidelity --json
  toolkit verify BUNDLE --against OTHER_BUNDLE
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `verify` to the command line."""
    parser = subparsers.add_parser(
        "verify",
        help="check a bundle's files and show how faithful it is",
        description="Hash every file of a bundle and show the fidelity figures that were recorded when it was made.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="folder that `convert` wrote")
    parser.add_argument("--fidelity", action="store_true", help="measure again against the checkpoint (minutes; needs the convert extra)")
    parser.add_argument(
        "--against",
        metavar="OTHER_BUNDLE",
        help="compare its answers with another bundle's, each in its own runtime (minutes; needs the convert extra)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the command; exit code 6 when the figures fail their gates."""
    with byte_progress().stage(f"checking {args.bundle}") as step:
        bundle = Bundle.open(args.bundle, full_check=True, advance=step.advance)
    if args.against is not None:
        return _compare(bundle, Path(args.against), is_json=args.json)
    recorded = bundle.manifest.fidelity
    measured: Fidelity | None = call_plugin("verify_fidelity", bundle.path) if args.fidelity else None
    shown = measured or recorded
    if args.json:
        print_json(_result(bundle, recorded, measured))
    else:
        print_rows(_rows(bundle, recorded, measured))
    if shown is not None and shown.verdict == "fail":
        raise FidelityError(
            f"{bundle.name} does not answer like its checkpoint",
            why=fidelity_text(shown).replace("\n", "; "),
            fix="convert it with a finer recipe (--recipe int8), or raise the gate (--max-kl) knowingly",
        )
    return 0


def _compare(bundle: Bundle, against: Path, *, is_json: bool) -> int:
    """Show two bundles side by side, and how far the first is from the second."""
    other = Bundle.open(against, full_check=True)
    figures: Fidelity = call_plugin("compare_bundles", bundle.path, other.path)
    rows = [_compared(bundle, figures.perplexity), _compared(other, figures.reference_perplexity)]
    distance = {name: getattr(figures, name) for name in ("n_tokens", "kl_mean", "kl_p99", "top1_agreement", "perplexity_ratio")}
    if is_json:
        print_json({"bundle": rows[0], "against": rows[1], **distance})
        return 0
    print_rows(
        [
            *((word, _compared_text(row)) for word, row in zip(("bundle", "against"), rows, strict=True)),
            ("compared", f"{figures.n_tokens} tokens"),
            ("KL", f"mean {figures.kl_mean:.4f}, p99 {figures.kl_p99:.3f} nats"),
            ("same top token", f"{100 * figures.top1_agreement:.1f} %"),
            ("perplexity ratio", f"{figures.perplexity_ratio:.4f}"),
        ]
    )
    return 0


def _compared_text(row: Mapping[str, Any]) -> str:
    return f"{row['name']}: {format_bytes(row['bytes'])}, {row['bits_per_weight']:.2f} bits a weight, perplexity {row['perplexity']:.2f}"


def _compared(bundle: Bundle, perplexity: float) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "name": bundle.name,
        "path": str(bundle.path),
        "target": manifest.target,
        "recipe": manifest.recipe.get("name"),
        "bytes": bundle.bytes,
        "bits_per_weight": manifest.bits_per_weight,
        "perplexity": perplexity,
    }


def _result(bundle: Bundle, recorded: Fidelity | None, measured: Fidelity | None) -> dict[str, Any]:
    shown = measured or recorded
    return {
        "bundle": bundle.name,
        "path": str(bundle.path),
        "files": [asdict(record) for record in bundle.manifest.files],
        "bytes": bundle.bytes,
        "fidelity": None if shown is None else {**asdict(shown), "perplexity_ratio": shown.perplexity_ratio},
        "measured_now": measured is not None,
        "verdict": "not verified" if shown is None else shown.verdict,
    }


def _rows(bundle: Bundle, recorded: Fidelity | None, measured: Fidelity | None) -> list[tuple[str, str]]:
    files = bundle.manifest.files
    rows = [
        ("bundle", bundle.name),
        ("files", f"{len(files)} of {len(files)} as published, {format_bytes(bundle.bytes)}"),
        ("recorded", fidelity_text(recorded)),
    ]
    return [*rows, ("measured now", fidelity_text(measured))] if measured is not None else rows
