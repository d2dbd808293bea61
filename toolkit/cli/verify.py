"""`toolkit verify`: are these the bytes that were published, and how faithful are they?"""

from __future__ import annotations

import argparse
from dataclasses import asdict
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
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the command; exit code 6 when the figures fail their gates."""
    with byte_progress().stage(f"checking {args.bundle}") as step:
        bundle = Bundle.open(args.bundle, full_check=True, advance=step.advance)
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
