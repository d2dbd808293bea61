"""`toolkit doctor`: what this machine has, what each engine uses of it, and why something is missing."""

from __future__ import annotations

import argparse
import platform
from dataclasses import asdict
from importlib import metadata
from typing import Any

from toolkit.cli.output import print_json, print_rows
from toolkit.device.profile import Device, probe_device
from toolkit.diagnosis import EngineReport, diagnose
from toolkit.units import format_bytes
from toolkit.worker_start import can_isolate

_EXAMPLES = """\
examples:
  toolkit doctor
  toolkit doctor --json
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `doctor` to the command line."""
    parser = subparsers.add_parser(
        "doctor",
        help="say what this machine has and what each engine uses of it",
        description="Say what this machine has, which engines are installed, what each really uses, and how to install what is missing.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the command; 0 also when engines are missing, because none is needed to plan or to look into bundles."""
    device = probe_device()
    reports = diagnose(device)
    if args.json:
        print_json(_result(device, reports))
    else:
        print_rows(_rows(device, reports))
    return 0


def _result(device: Device, reports: list[EngineReport]) -> dict[str, Any]:
    return {
        "toolkit": metadata.version("ondevice-toolkit"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "can_isolate": can_isolate(),
        "device": device.as_dict(),
        "engines": [asdict(report) for report in reports],
    }


def _rows(device: Device, reports: list[EngineReport]) -> list[tuple[str, str]]:
    cores = device.cores
    free = "unknown" if device.free_memory is None else f"{format_bytes(device.free_memory.bytes)} free ({device.free_memory.limited_by})"
    total = "unknown RAM" if device.total_memory_bytes is None else f"{format_bytes(device.total_memory_bytes)} RAM"
    quota = "" if cores.quota is None else f", {cores.quota:g} CPUs of time"
    rows = [
        ("toolkit", f"{metadata.version('ondevice-toolkit')}, Python {platform.python_version()}, {device.system} {device.machine}"),
        ("processor", device.name),
        ("cores", f"{cores.n_physical} ({cores.n_big} big, {cores.n_logical} threads{quota}): models get {cores.best_threads} threads"),
        ("instructions", "unknown" if device.isa is None else ", ".join(device.isa) or "none we know by name"),
        ("accelerators", ", ".join(f"{each.kind.upper()} {each.name}" for each in device.accelerators) or "none found"),
        ("memory", f"{total}, {free}"),
        ("isolation", "engines get a process of their own" if can_isolate() else "engines run in the app's process"),
    ]
    return rows + [(f"{report.name} engine", engine_text(report)) for report in reports]


def engine_text(report: EngineReport) -> str:
    """An engine in a few lines."""
    if not report.is_available:
        head = f"not usable: {report.why}" if report.version is None else f"{report.version}, not usable: {report.why}"
        return f"{head}\nfix: {report.fix}"
    text = f"{report.version or 'unknown version'} on {', '.join(report.uses)}; {report.detail}"
    if report.unused:
        text += f"\nnot used: {', '.join(report.unused)}"
    if report.capabilities:
        names = [name.replace("_", " ") for name, is_there in report.capabilities.items() if is_there]
        text += f"\ncan: {', '.join(names)}"
    return text
