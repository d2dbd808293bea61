"""`toolkit plan`: does it fit, and how would it run? No engine is loaded, none need be installed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from toolkit.budget import Budget
from toolkit.bundle import Bundle
from toolkit.cli.output import print_json, print_rows
from toolkit.device.profile import Device, probe_device
from toolkit.limits import check_expected_tokens
from toolkit.plan import Plan, PlanRefused, make_plan
from toolkit.units import format_bytes, parse_bytes

_EXAMPLES = """\
examples:
  toolkit plan bundles/smollm2-135m-instruct-litert-int8
  toolkit plan BUNDLE --ram 2GiB --cores 4 --context 2048
  toolkit plan BIG_BUNDLE SMALL_BUNDLE --device pixel-8.toml --json

Several bundles are taken in the order of preference: the first that fits is planned.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `plan` to the command line."""
    parser = subparsers.add_parser(
        "plan",
        help="say whether a bundle fits a device, and how it would run",
        description="Say whether a bundle fits this device or another, from its manifest alone; exit code 3 when it does not.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundles", metavar="BUNDLE", nargs="+", help="folders that `convert` wrote")
    device = parser.add_argument_group("device (default: this one, as it is now)")
    device.add_argument("--device", metavar="FILE", type=Path, help="a device profile (docs/formats/device.md)")
    device.add_argument("--ram", metavar="SIZE", help="memory it has free for the model, like 2GiB")
    device.add_argument("--cores", metavar="N", type=int, help="its cores, all alike")
    work = parser.add_argument_group("work")
    work.add_argument("--context", metavar="N", type=int, help="tokens the KV cache must hold")
    work.add_argument("--tokens", metavar="N", type=int, help="tokens of the first job, prompt and answer (default: up to 512)")
    work.add_argument("--threads", metavar="N", type=int, help="CPU threads (default: one a big core, at most 4)")
    work.add_argument("--backend", metavar="NAME", help="default: the one that runs the bundle's target")
    work.add_argument("--max-memory", metavar="SIZE", help="resident memory it may take, like 1.2GiB")
    work.add_argument("--force", action="store_true", help="plan it even if it does not fit")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    device = _device(args)
    bundles = [Bundle.unchecked(name) for name in args.bundles]
    if args.tokens is not None:  # an engine may guess too many and be given fewer; here they are what is asked
        for bundle in bundles:
            lengths = (bundle.manifest.context_length, args.context)
            check_expected_tokens(args.tokens, most=min(length for length in lengths if length is not None and length > 0))
    try:
        plan = make_plan(
            bundles,
            device,
            Budget(memory=args.max_memory),
            context_length=args.context,
            expected_tokens=args.tokens,
            threads=args.threads,
            backend=args.backend,
            force=args.force,
        )
    except PlanRefused as refused:
        if not args.json:
            raise
        print_json({**_result(refused.plan, device), **refused.as_json()})
        return refused.exit_code
    if args.json:
        print_json(_result(plan, device))
    else:
        print_rows(_rows(plan, device))
    return 0


def _device(args: argparse.Namespace) -> Device:
    if args.device is not None:
        from toolkit.device.profile_file import load_device

        device = load_device(args.device)
    else:
        device = probe_device()
    if args.ram is not None:
        device = device.with_memory(parse_bytes(args.ram), "--ram")
    return device if args.cores is None else device.with_cores(args.cores)


def _result(plan: Plan, device: Device) -> dict[str, Any]:
    return {**plan.as_dict(), "device": device.name}


def _rows(plan: Plan, device: Device) -> list[tuple[str, str]]:
    estimate = plan.estimate
    parts = sorted(estimate.parts.items(), key=lambda part: -part[1])
    names = [f"{name.removesuffix('_bytes').replace('_', ' ')} {format_bytes(size)}" for name, size in parts if size]
    basis = "measured at two contexts when it was converted" if estimate.is_calibrated else "arithmetic: this bundle was not measured"
    available = "unknown" if plan.available_bytes is None else f"{format_bytes(plan.available_bytes)} ({plan.limited_by})"
    rows = [
        ("bundle", plan.bundle.name),
        ("device", device.name),
        ("fits", "yes" if plan.fits else "no, forced"),
        ("memory", f"{format_bytes(estimate.peak_rss_bytes)} at the peak, {format_bytes(estimate.mapped_bytes)} of it files"),
        ("of that", ", ".join(names)),
        ("basis", basis),
        ("available", available),
        ("context", f"{plan.context_length} tokens, may grow to {plan.max_context_length}"),
        ("runs on", f"{plan.backend}, {plan.threads} threads, prompts in chunks of {plan.prefill_chunk}, KV cache {plan.kv_cache_type}"),
    ]
    return rows + [("not", f"{name}: {why}") for name, why in plan.rejected]
