"""`toolkit chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from toolkit.bundle import Bundle
from toolkit.cli.interrupt import Interruptible, leave
from toolkit.cli.options import add_engine_options, add_sampling_options, checked_sampling, open_engine
from toolkit.cli.output import INTERRUPTED, metrics_line, print_interrupted, print_piece
from toolkit.cli.standard_input import read_line, standard_input
from toolkit.engine import Engine
from toolkit.errors import ToolkitError, UsageError
from toolkit.session import Session

_EXAMPLES = """\
examples:
  toolkit chat bundles/smollm2-135m-instruct-litert-int8
  toolkit chat BUNDLE --system "You answer in one sentence." --temperature 0.7

Ctrl-C ends the running answer, which stays part of the conversation; Ctrl-C or Ctrl-D at the prompt leaves.
"""
_EXPECTED_TOKENS = 1024


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `chat` to the command line."""
    parser = subparsers.add_parser(
        "chat",
        help="talk with a bundle",
        description="Talk with a bundle. Lines are read from stdin, answers go to stdout, what they cost to stderr.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="folder that `convert` wrote")
    add_sampling_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    sampling = checked_sampling(args)
    bundle = Bundle.unchecked(args.bundle)
    bundle.require_prompts()
    if not bundle.manifest.chat:
        raise UsageError(
            f"{bundle.name} cannot chat",
            why="it is a base model: its checkpoint came without a chat template",
            fix=f'let it continue a text: toolkit run {args.bundle} "Once upon a time"',
        )
    with _load(args, bundle) as engine:
        return _converse(args, engine.session(system=args.system, **vars(sampling)))


def _load(args: argparse.Namespace, bundle: Bundle) -> Engine:
    """Open the engine; Ctrl-C leaves at once."""
    opened: list[Engine] = []

    def work() -> int:
        opened.append(open_engine(args, bundle, expected_tokens=_EXPECTED_TOKENS))
        return 0

    try:
        Interruptible().run(work)
    except KeyboardInterrupt:
        print_interrupted(as_json=False)
        leave(INTERRUPTED)
    return opened[0]


def _converse(args: argparse.Namespace, session: Session) -> int:
    is_terminal = standard_input().isatty()
    if is_terminal:
        try:
            import readline  # noqa: F401  (line editing and history for input())
        except ImportError:
            pass
    while True:
        line = _typed() if is_terminal else read_line()
        if line is None:
            return 0
        if not line.strip():
            continue
        interruptible = Interruptible()
        interruptible.on_interrupt(session.cancel)
        try:
            interruptible.run(partial(_answer, args, session, line))
        except KeyboardInterrupt:
            if not is_terminal:
                leave(INTERRUPTED)
        except ToolkitError as error:
            if not is_terminal:
                raise
            print(error, file=sys.stderr)


def _typed() -> str | None:
    try:
        return input("> ")
    except EOFError:
        return None


def _answer(args: argparse.Namespace, session: Session, text: str) -> int:
    for piece in session.send(text, max_tokens=args.max_tokens, stop=args.stop):
        print_piece(piece.text)
    print_piece("\n")
    assert session.metrics is not None and session.finish_reason is not None
    print(metrics_line(session.metrics, session.finish_reason), file=sys.stderr, flush=True)
    return 0
