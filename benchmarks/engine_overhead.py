"""What the runtime adds to the bare engine: litert_lm by itself, toolkit's Engine beside it, and in a process of its own, turn by turn.

    python -m benchmarks.engine_overhead bundles/smollm2-135m-instruct-litert-int8 [--rounds 20] [--json]

Both get the same file, threads, context, weights cache and prompt; each round runs in a changing order. Figures are taken by the
clock of the caller, from the call to each piece of text. "bare" is litert_lm's own streaming loop, its benchmark counters off.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from benchmarks.harness import Report, Target, paired_ratios, parser, run
from toolkit import Bundle, Engine
from toolkit.backends.litert import cache_dir
from toolkit.bench_prompt import make_prompt
from toolkit.bench_summary import interleaved
from toolkit.limits import usable_threads

PROMPT_TOKENS, ANSWER_TOKENS, TEMPLATE_TOKENS = 256, 64, 64
OURS, APART, BARE = "toolkit", "toolkit, own process", "bare litert_lm"
DECODE_TARGETS = {OURS: Target("at least", 0.98), APART: Target("at least", 0.97)}
TTFT_TARGETS = {OURS: Target("at most", 0.005), APART: Target("at most", 0.015)}


def timed(pieces: Iterable[Any]) -> dict[str, float]:
    """Run one answer; its figures by the clock. The decode rate is over pieces, the same on both sides."""
    started = time.perf_counter()
    stamps = [time.perf_counter() for _ in pieces]
    return {
        "ttft_s": stamps[0] - started,
        "decode_pieces_per_s": (len(stamps) - 1) / (stamps[-1] - stamps[0]),
        "total_s": stamps[-1] - started,
    }


def take(bundle: Bundle, *, rounds: int, threads: int) -> dict[str, list[dict[str, float]]]:
    """All sides, `rounds` times each after one warm-up, in alternating order."""
    import litert_lm

    context = PROMPT_TOKENS + ANSWER_TOKENS + TEMPLATE_TOKENS
    cpu = litert_lm.Backend.CPU(thread_count=threads)
    greedy = litert_lm.SamplerConfig(top_k=1, top_p=0.95, temperature=1.0, seed=0)
    runs: dict[str, list[dict[str, float]]] = {BARE: [], OURS: [], APART: []}
    with (
        Engine.open(bundle, context_length=context, threads=threads, isolated=False) as ours,
        Engine.open(bundle, context_length=context, threads=threads, isolated=True) as apart,
    ):
        bare = litert_lm.Engine(str(bundle.entry_path), backend=cpu, max_num_tokens=context, cache_dir=cache_dir(bundle))
        prompt = make_prompt(lambda text: len(ours.tokenize(text)), PROMPT_TOKENS)

        def run_bare() -> dict[str, float]:
            with bare.create_conversation(sampler_config=greedy) as conversation:
                return timed(conversation.send_message_async(prompt, max_output_tokens=ANSWER_TOKENS))

        def run_engine(engine: Engine) -> dict[str, float]:
            with engine.session() as session:
                return timed(session.send(prompt, max_tokens=ANSWER_TOKENS))

        answer: dict[str, Callable[[], dict[str, float]]] = {
            BARE: run_bare,
            OURS: partial(run_engine, ours),
            APART: partial(run_engine, apart),
        }
        for index, side in interleaved([BARE, OURS, APART], rounds + 1):
            figures = answer[side]()
            if index > 0:
                runs[side].append(figures)
        bare.close()
    return runs


def measure(args: argparse.Namespace) -> Report:
    bundle = Bundle.open(args.bundle)
    settings = {"bundle": bundle.name, "prompt_tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS, "rounds": args.rounds}
    report = Report("engine_overhead", settings | {"threads": args.threads})
    runs = take(bundle, rounds=args.rounds, threads=args.threads)
    for name in runs[OURS][0]:
        values = {side: [figures[name] for figures in rounds] for side, rounds in runs.items()}
        for side in (BARE, OURS, APART):
            report.add(side, name, values[side])
        for side in (OURS, APART):
            target = DECODE_TARGETS[side] if name == "decode_pieces_per_s" else None
            report.add(f"{side} / {BARE}", f"{name.partition('_')[0]}_ratio", paired_ratios(values[side], values[BARE]), target)
            if name == "ttft_s":
                extra = [ours - bare for ours, bare in zip(values[side], values[BARE], strict=True)]
                report.add(f"{side} - {BARE}", "ttft_extra_s", extra, TTFT_TARGETS[side])
    return report


def main() -> int:
    """Run the command; returns the exit code."""
    options = parser(__doc__)
    options.add_argument("bundle", metavar="BUNDLE", help="a bundle with a chat template")
    options.add_argument("--rounds", type=int, default=20, metavar="N", help="answers of each side (default: 20)")
    options.add_argument("--threads", type=int, default=min(usable_threads(), 2), metavar="N", help="default: 2, or 1 with one CPU")
    return run(measure, options.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
