"""What the runtime adds to the bare engine: litert_lm by itself and toolkit's Engine, turn by turn in one process.

    python -m benchmarks.engine_overhead bundles/smollm2-135m-instruct-litert-int8 [--pairs 20] [--json]

Both get the same file, threads, context, weights cache and prompt; each pair runs in a changing order. Figures are taken by the
clock of the caller, from the call to each piece of text. "bare" is litert_lm's own streaming loop, its benchmark counters off.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

from toolkit import Bundle, Engine
from toolkit.backends.litert import cache_dir
from toolkit.limits import usable_threads

PROMPT_TOKENS, ANSWER_TOKENS = 256, 64
WORDS = "The inspector walked along the line and wrote down what each pump, valve and gauge was doing that morning. "


def timed(pieces: Iterable[Any]) -> dict[str, float]:
    """Run one answer; its figures by the clock. The decode rate is over pieces, the same on both sides."""
    started = time.perf_counter()
    stamps = [time.perf_counter() for _ in pieces]
    return {
        "ttft_s": stamps[0] - started,
        "decode_pieces_per_s": (len(stamps) - 1) / (stamps[-1] - stamps[0]),
        "total_s": stamps[-1] - started,
        "n_pieces": len(stamps),
    }


def prompt_of(count: Callable[[str], int], n_tokens: int) -> str:
    """Text of about `n_tokens` tokens."""
    text = WORDS * (n_tokens // max(1, count(WORDS)) + 1)
    while count(text) > n_tokens:
        text = text[: text.rstrip().rfind(" ")]
    return text


def measure(bundle: Bundle, *, pairs: int, threads: int) -> dict[str, list[dict[str, float]]]:
    """Both sides, `pairs` times each after one warm-up, in alternating order."""
    import litert_lm

    context = PROMPT_TOKENS + ANSWER_TOKENS + 128
    cpu = litert_lm.Backend.CPU(thread_count=threads)
    greedy = litert_lm.SamplerConfig(top_k=1, top_p=0.95, temperature=1.0, seed=0)
    with Engine.open(bundle, context_length=context, threads=threads) as ours:
        bare = litert_lm.Engine(str(bundle.entry_path), backend=cpu, max_num_tokens=context, cache_dir=cache_dir(bundle))
        prompt = prompt_of(lambda text: len(ours.tokenize(text)), PROMPT_TOKENS)

        def run_bare() -> dict[str, float]:
            with bare.create_conversation(sampler_config=greedy) as conversation:
                return timed(conversation.send_message_async(prompt, max_output_tokens=ANSWER_TOKENS))

        def run_ours() -> dict[str, float]:
            with ours.session() as session:
                return timed(session.send(prompt, max_tokens=ANSWER_TOKENS))

        sides = {"bare": run_bare, "toolkit": run_ours}
        runs: dict[str, list[dict[str, float]]] = {"bare": [], "toolkit": []}
        for index in range(pairs + 1):
            for name in sorted(sides, reverse=index % 2 == 0):
                figures = sides[name]()
                if index > 0:
                    runs[name].append(figures)
        bare.close()
    return runs


def summary(runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """n, min, median and max of each figure and side, and the median over pairs of toolkit : bare."""
    result: dict[str, Any] = {}
    for name in ("ttft_s", "decode_pieces_per_s", "total_s"):
        sides = {side: [run[name] for run in figures] for side, figures in runs.items()}
        ratios = [ours / bare for ours, bare in zip(sides["toolkit"], sides["bare"], strict=True)]
        result[name] = {
            side: {"n": len(values), "min": min(values), "median": statistics.median(values), "max": max(values)}
            for side, values in sides.items()
        }
        result[name]["median_ratio"] = statistics.median(ratios)
        best = max if "per_s" in name else min
        result[name]["ratio_of_best"] = best(sides["toolkit"]) / best(sides["bare"])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=min(usable_threads(), 2))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    bundle = Bundle.open(args.bundle)
    figures = summary(measure(bundle, pairs=args.pairs, threads=args.threads))
    record = {
        "bundle": bundle.manifest.name,
        "prompt_tokens": PROMPT_TOKENS,
        "answer_tokens": ANSWER_TOKENS,
        "threads": args.threads,
        "machine": {"cpu": platform.processor() or platform.machine(), "system": platform.platform(), "python": platform.python_version()},
        "versions": {name: metadata.version(name) for name in ("litert-lm-api", "ondevice-toolkit")},
        "figures": figures,
    }
    if args.json:
        print(json.dumps(record))
        return
    print(f"{record['bundle']}, {PROMPT_TOKENS} + {ANSWER_TOKENS} tokens, {args.threads} threads, {args.pairs} pairs")
    print(f"  {record['machine']}, {record['versions']}")
    for name, sides in figures.items():
        for side in ("bare", "toolkit"):
            low, median, high = (sides[side][key] for key in ("min", "median", "max"))
            print(f"  {name:20} {side:8} min {low:8.3f}  median {median:8.3f}  max {high:8.3f}")
        print(f"  {name:20} toolkit : bare = {sides['median_ratio']:.4f} (median of pairs), {sides['ratio_of_best']:.4f} (best : best)")


if __name__ == "__main__":
    main()
