"""`toolkit run`: one prompt in, one answer out."""

from __future__ import annotations

import argparse
import sys

from toolkit.answer import FinishReason
from toolkit.backends.base import Sampling
from toolkit.bundle import Bundle
from toolkit.cli.interrupt import Interruptible, leave
from toolkit.cli.options import add_engine_options, add_sampling_options, checked_sampling, open_engine
from toolkit.cli.output import INTERRUPTED, metrics_line, print_interrupted, print_json, print_piece
from toolkit.cli.standard_input import read_prompt
from toolkit.engine import Engine
from toolkit.errors import EngineError, UsageError
from toolkit.limits import check_context_length, check_text
from toolkit.schema import Schema, read_schema
from toolkit.session import Session

_EXAMPLES = """\
examples:
  toolkit run bundles/smollm2-135m-instruct-litert-int8 "What is the capital of France?"
  toolkit run BUNDLE "Name a colour." --temperature 0.8 --seed 7 --max-tokens 20
  toolkit run BUNDLE - --json < prompt.txt
  toolkit run BUNDLE "The pump of station 4 is dry. As JSON:" --schema report.json

A base model, which has no chat template, continues the prompt as it is.
"""
_TEMPLATE_TOKENS = 48  # a guess at what a chat template adds; a wrong one costs opening the engine again
_BYTES_PER_TOKEN = 3


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `run` to the command line."""
    parser = subparsers.add_parser(
        "run",
        help="answer one prompt with a bundle",
        description="Answer one prompt with a bundle: the answer on stdout as it is generated, what it cost on stderr.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="folder that `convert` wrote")
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt, or - to read it from stdin")
    add_sampling_options(parser)
    add_engine_options(parser)
    parser.add_argument("--schema", metavar="FILE", help="a JSON schema: the answer is a value of it (onnx, mlx and gguf bundles)")
    parser.add_argument("--json", action="store_true", help="print {text, finish_reason, metrics, ...} as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the command; Ctrl-C prints what there is and exits 130."""
    sampling = checked_sampling(args)
    prompt = read_prompt() if args.prompt == "-" else args.prompt
    schema = None if args.schema is None else read_schema(args.schema)
    bundle = Bundle.unchecked(args.bundle)
    if args.context is not None:
        check_context_length(args.context, most=bundle.manifest.context_length)
    check_text(prompt, what="the prompt", context_length=args.context or bundle.manifest.context_length)
    interruptible = Interruptible()
    try:
        return interruptible.run(lambda: _answer(args, bundle, prompt, sampling, schema, interruptible))
    except KeyboardInterrupt:
        is_unheard = interruptible.give_up()
        print_interrupted(as_json=args.json and is_unheard)
        leave(INTERRUPTED)


def _answer(
    args: argparse.Namespace, bundle: Bundle, prompt: str, sampling: Sampling, schema: Schema | None, interruptible: Interruptible
) -> int:
    expected = len(prompt.encode()) // _BYTES_PER_TOKEN + _TEMPLATE_TOKENS + args.max_tokens
    with open_engine(args, bundle, expected_tokens=expected) as engine:
        session = _session(args, engine, sampling)
        interruptible.on_interrupt(session.cancel)
        text, failure = "", None
        try:
            for piece in session.send(prompt, max_tokens=args.max_tokens, stop=args.stop, schema=schema):
                text += piece.text
                if not args.json:
                    print_piece(piece.text)
        except EngineError as error:
            if session.finish_reason is not FinishReason.CRASHED:
                raise
            failure = error  # what came before it is a result all the same
        else:
            failure = _cut(session) if schema is not None else None
        if interruptible.may_print():
            _print_result(args, bundle, session, text, failure)
        interruptible.report_done()
        if failure is not None:
            return failure.exit_code
        return INTERRUPTED if session.finish_reason is FinishReason.CANCELLED else 0


def _cut(session: Session) -> EngineError | None:
    """Why the answer is only the beginning of a value, which a script must not take for one."""
    if session.finish_reason not in (FinishReason.LENGTH, FinishReason.BUDGET):
        return None
    assert session.metrics is not None
    n_tokens = session.metrics.n_generated_tokens
    return EngineError(
        "the answer was cut before its value was whole",
        why=f"it may have {n_tokens} tokens, and has used them ({session.finish_reason.value})",
        fix=f"use --max-tokens {2 * n_tokens}, or put maxLength and maxItems into the schema",
    )


def _session(args: argparse.Namespace, engine: Engine, sampling: Sampling) -> Session:
    if engine.bundle.manifest.chat:
        return engine.session(system=args.system, **vars(sampling))
    if args.system is not None:
        raise UsageError(
            f"{engine.bundle.name} takes no system message",
            why="it is a base model without a chat template",
            fix="put what it should know into the prompt",
        )
    return engine.plain_session(**vars(sampling))


def _print_result(args: argparse.Namespace, bundle: Bundle, session: Session, text: str, failure: EngineError | None) -> None:
    assert session.metrics is not None and session.finish_reason is not None
    if args.json:
        result: dict[str, object] = {"text": text, "finish_reason": session.finish_reason.value, "metrics": session.metrics.as_dict()}
        error = {} if failure is None else failure.as_json()
        result |= {} if args.schema is None else {"parsed": session.parsed}
        print_json({**result, "bundle": bundle.name, "seed": session.sampling.seed, **error})
    else:
        print_piece("\n")
        print(metrics_line(session.metrics, session.finish_reason), file=sys.stderr, flush=True)
    if failure is not None:
        print(failure, file=sys.stderr, flush=True)
