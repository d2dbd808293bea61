"""The `voice-notes` command. Results go to stdout, progress and errors to stderr; exit codes are the toolkit's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mobile_app.messages import refusal, shown, user_language
from toolkit.cli import Parser
from toolkit.cli.ending import end_without_stdout, report_error, unforeseen
from toolkit.errors import BackendUnavailableError, ToolkitError

_EXAMPLES = """\
examples:
  voice-notes report note.wav --out report
  voice-notes report note.wav --template nursing --language ja
  voice-notes report note.wav --transcript transcript.json --json
"""
_EPILOG = "exit codes: 0 ok, 1 failure, 2 usage, 3 budget, 4 bad file, 5 backend or dependency missing, 130 interrupted"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_debug = "--debug" in arguments
    arguments = [word for word in arguments if word != "--debug"]
    language = user_language(_asked_language(arguments))
    as_json = "--json" in arguments
    try:
        code = _dispatch(arguments, language)
        sys.stdout.flush()
        return code
    except ToolkitError as error:
        return report_error(error, as_json=as_json, is_debug=is_debug, text=shown(error, language))
    except KeyboardInterrupt:
        from toolkit.cli.output import INTERRUPTED, print_interrupted

        print_interrupted(as_json=as_json, said="interrupted; the recording is untouched")
        return INTERRUPTED
    except Exception as error:
        if (ended := end_without_stdout(error)) is not None:
            return ended
        fix = "run it again with --debug and report what it prints; the recording is untouched"
        found = unforeseen(error, program="voice-notes", fix=fix)
        return report_error(found, as_json=as_json, is_debug=is_debug, text=shown(found, language))


def _dispatch(arguments: list[str], language: str) -> int:
    parser = Parser(prog="voice-notes", description="Turn spoken notes into reports, offline.", epilog=_EPILOG)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    report = subparsers.add_parser(
        "report",
        help="make a report of a recorded note",
        description="Write down a recorded note and make a report of it: report.json, report.md, report.html and transcript.json.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_report_options(report)
    args = parser.parse_args(arguments)
    if args.command is None:
        raise refusal(BackendUnavailableError, "no_window", language)
    from mobile_app.report_command import run

    return run(args, user=language)


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("note", metavar="NOTE.wav", nargs="?", help="the recording; a WAV file, or others where soundfile is installed")
    parser.add_argument("--out", metavar="DIR", help="folder of the report (default: NOTE-report in the current folder)")
    parser.add_argument("--transcript", metavar="FILE", help="take this transcript (JSON of `toolkit transcribe`, or text), no model")
    parser.add_argument("--bundle", metavar="DIR", help="the speech model (default: bundles/whisper-tiny.en-litert-int8, ja: whisper-base)")
    parser.add_argument("--language", choices=("en", "ja"), help="what is spoken, and the language of messages (default: detected, locale)")
    parser.add_argument("--template", metavar="NAME", default="inspection", help="inspection, nursing, site-visit or a TOML file")
    parser.add_argument("--date", metavar="YYYY-MM-DD", help="day of the note: gives `tomorrow` and `Friday` their dates")
    parser.add_argument("--force", action="store_true", help="replace another report in DIR")
    parser.add_argument("--json", action="store_true", help="print report.json on stdout as well")


def _asked_language(arguments: list[str]) -> str | None:
    """`--language` before anything is parsed: even the refusal of a wrong option is told in it."""
    for index, word in enumerate(arguments):
        if word.startswith("--language="):
            return word.partition("=")[2]
        if word == "--language" and index + 1 < len(arguments):
            return arguments[index + 1]
    return None


if __name__ == "__main__":
    sys.exit(main())
