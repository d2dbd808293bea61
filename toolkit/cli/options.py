"""Options that `run` and `chat` share."""

from __future__ import annotations

import argparse

from toolkit.backends.base import Sampling
from toolkit.budget import Budget
from toolkit.bundle import Bundle
from toolkit.engine import Engine
from toolkit.governor import Governor
from toolkit.governor_policy import load_policy
from toolkit.limits import check_max_tokens, check_sampling, check_stops, drawn_seed


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Where and how the bundle runs."""
    group = parser.add_argument_group("engine")
    group.add_argument("--context", metavar="N", type=int, help="tokens the KV cache holds (default: as few as the work needs)")
    group.add_argument("--threads", metavar="N", type=int, help="CPU threads (default: one a big core, at most 4)")
    group.add_argument("--backend", metavar="NAME", help="default: the one that runs the bundle's target")
    group.add_argument("--max-memory", metavar="SIZE", help="refuse to run in more resident memory than this, like 1.2GiB")
    group.add_argument("--force", action="store_true", help="run it even if it does not fit, or ended its process before")
    group.add_argument("--in-process", action="store_true", help="run the engine in this process: what ends it ends this command")
    group.add_argument("--full-check", action="store_true", help="hash every file, even if it was checked before")
    _add_governor_options(parser)


def _add_governor_options(parser: argparse.ArgumentParser) -> None:
    """When battery or heat slow it down or stop it."""
    group = parser.add_argument_group("governor", "on by itself where there is a battery or a thermal status, and with a limit of these")
    group.add_argument("--battery-floor", metavar="SHARE", type=float, help="unplugged, do not run below this share of charge, like 0.15")
    group.add_argument("--max-temperature", metavar="C", type=float, help="pause at this temperature of the hottest sensor, in °C")
    table = group.add_mutually_exclusive_group()
    table.add_argument("--governor", metavar="FILE", help="a table of your own (docs/guides/governor.md)")
    table.add_argument("--no-governor", action="store_true", help="leave the table out")


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen, and when an answer ends."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", metavar="N", type=int, default=256, help="most tokens to generate (default: 256)")
    group.add_argument("--temperature", metavar="T", type=float, default=0.0, help="0 takes the likeliest token (default: 0)")
    group.add_argument("--top-k", metavar="K", type=int, default=40, help="draw from the K likeliest tokens (default: 40)")
    group.add_argument("--top-p", metavar="P", type=float, default=0.95, help="draw from this share of probability (default: 0.95)")
    group.add_argument("--seed", metavar="S", type=int, help="makes a drawn answer repeatable (default: drawn)")
    group.add_argument("--stop", metavar="TEXT", action="append", default=[], help="end the answer before this text; may be repeated")
    group.add_argument("--system", metavar="TEXT", help="system message")


def checked_sampling(args: argparse.Namespace) -> Sampling:
    """The sampling that was asked for; everything is checked before a model is loaded.

    Raises:
        UsageError: A number is out of range.
    """
    check_max_tokens(args.max_tokens)
    check_stops(args.stop)
    sampling = Sampling(args.temperature, args.top_k, args.top_p, drawn_seed(args.seed))
    check_sampling(sampling)
    return sampling


def open_engine(args: argparse.Namespace, bundle: Bundle, *, expected_tokens: int | None = None) -> Engine:
    """`Engine.open` with the engine options; checks the bundle's files."""
    return Engine.open(
        bundle.path,
        budget=Budget(memory=args.max_memory, battery_floor=args.battery_floor, max_temperature_c=args.max_temperature),
        context_length=args.context,
        threads=args.threads,
        backend=args.backend,
        expected_tokens=expected_tokens,
        force=args.force,
        isolated=False if args.in_process else None,
        full_check=args.full_check,
        governor=Governor(load_policy(args.governor)) if args.governor else False if args.no_governor else None,
    )
