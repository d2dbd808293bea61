"""`toolkit bench`: how fast, how large and how thirsty a bundle is on this machine, alone or beside others."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from toolkit.backends import load_backend
from toolkit.bench import BenchJob, make_sides, measure_sides
from toolkit.bench_plot import check_plot, draw
from toolkit.bench_record import BenchRecord
from toolkit.bundle import Bundle
from toolkit.cli.bench_table import table
from toolkit.cli.interrupt import Interruptible, leave
from toolkit.cli.output import INTERRUPTED, print_interrupted, print_json
from toolkit.device.busy import measure_busy_share
from toolkit.errors import ToolkitError, UsageError
from toolkit.limits import check_context_length, check_threads

_EXAMPLES = """\
examples:
  toolkit bench bundles/smollm2-135m-instruct-litert-int8
  toolkit bench BUNDLE --vs OTHER_BUNDLE,THIRD_BUNDLE --rounds 9 --plot bench.svg
  toolkit bench BUNDLE --vs BUNDLE --backend gguf,reference --json

Every round opens the bundle in a fresh process, answers once to warm up and once to measure (docs/guides/bench.md).
"""
_MOST_ROUNDS = 1000


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` to the command line."""
    parser = subparsers.add_parser(
        "bench",
        help="measure bundles on this machine, alone or turn by turn",
        description="Measure load, first token, prefill, decode, memory, energy and heat of a bundle; with --vs of several, turn by turn.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="folder that `convert` wrote")
    parser.add_argument("--vs", metavar="BUNDLE,...", action="append", default=[], help="compare with these, round by round")
    work = parser.add_argument_group("work")
    work.add_argument("--rounds", metavar="N", type=int, default=5, help="measured rounds of each bundle (default: 5)")
    work.add_argument("--prompt-tokens", metavar="N", type=int, default=256, help="tokens of the prompt, exactly (default: 256)")
    work.add_argument("--new-tokens", metavar="N", type=int, default=64, help="tokens of the answer (default: 64)")
    engine = parser.add_argument_group("engine")
    engine.add_argument("--context", metavar="N", type=int, help="tokens the KV cache holds (default: as few as the work needs)")
    engine.add_argument("--threads", metavar="N", type=int, help="CPU threads (default: one a big core, at most 4)")
    engine.add_argument("--backend", metavar="NAME,...", help="for all bundles, or one for each (default: what runs the target)")
    engine.add_argument("--in-process", action="store_true", help="run the engines in this process, one after the other")
    engine.add_argument("--force", action="store_true", help="run what does not fit, and compare on a busy machine")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the rounds into a .svg, .png or .pdf (needs matplotlib)")
    parser.add_argument("--json", action="store_true", help="print one JSON object with every value")


def run(args: argparse.Namespace) -> int:
    """Run the command; Ctrl-C prints what was measured and exits 130."""
    record = _checked_record(args)
    interruptible = Interruptible()
    try:
        return interruptible.run(lambda: _measure(args, record, interruptible))
    except KeyboardInterrupt:
        if interruptible.give_up():
            _print_interrupted(args, record)
        leave(INTERRUPTED)


def _checked_record(args: argparse.Namespace) -> BenchRecord:
    """Everything that can be refused is refused before a model is loaded."""
    _check_count(args.rounds, "--rounds", most=_MOST_ROUNDS)
    _check_count(args.prompt_tokens, "--prompt-tokens")
    _check_count(args.new_tokens, "--new-tokens")
    if args.threads is not None:
        check_threads(args.threads)
    if args.plot is not None:
        check_plot(args.plot)
    others = [name for names in args.vs for name in names.split(",")]
    if "" in others:
        raise UsageError("--vs names a bundle without a name", why=f"it is {','.join(args.vs)!r}", fix="write --vs BUNDLE2,BUNDLE3")
    folders = [args.bundle, *others]
    backends = _backends(args.backend, len(folders))
    bundles = [Bundle.open(folder) for folder in folders]
    for bundle in bundles:
        bundle.require_prompts()
        _check_fits(args, bundle)
    job = BenchJob(args.rounds, args.prompt_tokens, args.new_tokens, args.context, args.threads, args.in_process, args.force)
    return BenchRecord(job, make_sides(bundles, backends))


def _check_count(number: int, option: str, *, most: int = 2**20) -> None:
    if not 1 <= number <= most:
        raise UsageError(f"{option} {number} cannot be used", why=f"it must be 1 to {most}", fix=f"leave {option} out for the default")


def _backends(text: str | None, n_bundles: int) -> list[str | None]:
    if text is None:
        return [None] * n_bundles
    names = text.split(",")
    for name in names:
        load_backend(name)
    if len(names) not in (1, n_bundles):
        why = f"there are {n_bundles} bundles"
        raise UsageError(f"--backend names {len(names)} backends", why=why, fix="name one for all bundles, or one for each in their order")
    return list(names if len(names) == n_bundles else names * n_bundles)


def _check_fits(args: argparse.Namespace, bundle: Bundle) -> None:
    most, needed = bundle.manifest.context_length, args.prompt_tokens + args.new_tokens
    if args.context is not None:
        check_context_length(args.context, most=most)
        most = args.context
    if needed > most:
        raise UsageError(
            f"{args.prompt_tokens} + {args.new_tokens} tokens do not fit {bundle.name}",
            why=f"its context holds {most}",
            fix=f"use --context {needed}" if needed <= bundle.manifest.context_length else f"use {_fewer(most)}",
        )


def _fewer(context_length: int) -> str:
    n_new = max(1, context_length // 5)
    return f"--prompt-tokens {max(1, context_length - n_new)} --new-tokens {n_new}"


def _measure(args: argparse.Namespace, record: BenchRecord, interruptible: Interruptible) -> int:
    failure: ToolkitError | None = None
    try:
        measure_sides(record.sides, record.job, say=_say, probe_busy=measure_busy_share)
    except ToolkitError as error:
        if not record.has_rounds:
            raise
        failure = error  # the rounds before it are results all the same
    if not interruptible.may_print():
        return INTERRUPTED
    if args.plot is not None:
        try:
            draw(record, args.plot)
        except UsageError as error:  # minutes of measuring are not thrown away for a drawing
            failure = failure or error
    if args.json:
        print_json(record.as_dict() | ({} if failure is None else failure.as_json()))
    else:
        print(table(record), flush=True)
    interruptible.report_done()
    if failure is None:
        return 0
    print(failure, file=sys.stderr, flush=True)
    return failure.exit_code


def _print_interrupted(args: argparse.Namespace, record: BenchRecord) -> None:
    if not record.has_rounds:
        print_interrupted(as_json=args.json)
        return
    if args.json:
        error = {"what": "interrupted", "why": "these are the rounds before", "fix": "run the same command again", "code": INTERRUPTED}
        print_json(record.as_dict() | {"error": error})
    else:
        print(table(record), flush=True)
    print("interrupted", file=sys.stderr)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
