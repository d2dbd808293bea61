"""The `toolkit` command. Only the module of the command that was asked for is imported."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from toolkit.cli.ending import end_without_stdout, report_error, unforeseen
from toolkit.errors import ToolkitError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

# name -> (module with add_parser(subparsers) and run(args) -> exit code, help)
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("toolkit.cli.run", "answer one prompt with a bundle"),
    "chat": ("toolkit.cli.chat", "talk with a bundle"),
    "transcribe": ("toolkit.cli.transcribe", "write down what is said in a recording"),
    "plan": ("toolkit.cli.plan", "say whether a bundle fits a device, and how it would run"),
    "bench": ("toolkit.cli.bench", "measure bundles on this machine, alone or turn by turn"),
    "doctor": ("toolkit.cli.doctor", "say what this machine has and what each engine uses of it"),
    "inspect": ("toolkit.cli.inspect", "say what a bundle or a checkpoint is"),
    "verify": ("toolkit.cli.verify", "check a bundle's files and show how faithful it is"),
    "models": ("toolkit.cli.models", "list, pull and remove models"),
}
_EPILOG = """\
exit codes: 0 ok, 1 failure, 2 usage, 3 budget, 4 bad file, 5 backend or dependency missing, 6 fidelity gate, 130 interrupted
every command takes --debug (show tracebacks) and most take --json (one JSON object on stdout)
"""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose refusals are `UsageError`s, so they look like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog} does not understand this command line", why=message, fix=f"see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Results go to stdout, progress, notes and errors to stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_debug = _take_debug(arguments)
    as_json = "--json" in arguments
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except ToolkitError as error:
        return report_error(error, as_json=as_json, is_debug=is_debug)
    except KeyboardInterrupt:
        from toolkit.cli.output import INTERRUPTED, print_interrupted

        print_interrupted(as_json=as_json)
        return INTERRUPTED
    except Exception as error:
        if (ended := end_without_stdout(error)) is not None:
            return ended
        fix = "run it again with --debug and report what it prints"
        return report_error(unforeseen(error, program="toolkit", fix=fix), as_json=as_json, is_debug=is_debug)


def _dispatch(arguments: list[str]) -> int:
    if sys.stdout is None:
        raise UsageError("there is no stdout to write the result to", why="it was closed before the program began", fix="leave it open")
    parser = Parser(
        prog="toolkit",
        description="Run, check and look into on-device model bundles.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    asked = next((word for word in arguments if not word.startswith("-")), None)
    for name, (module, text) in COMMANDS.items():
        if name == asked:
            import_module(module).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=text)
    args = parser.parse_args(arguments)
    if args.version:
        print(_version())
        return 0
    if args.command is None:
        raise UsageError("no command was given", why=f"known are {', '.join(COMMANDS)}", fix="see toolkit --help")
    code: int = import_module(COMMANDS[args.command][0]).run(args)
    return code


def _take_debug(arguments: list[str]) -> bool:
    """Remove `--debug`, wherever it stands before a `--`; returns whether it was there."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    places = [index for index in range(end) if arguments[index] == "--debug"]
    for index in reversed(places):
        del arguments[index]
    if places:
        import logging

        logging.basicConfig(level=logging.DEBUG)
    return bool(places)


def _version() -> str:
    from importlib import metadata

    return metadata.version("ondevice-toolkit")
