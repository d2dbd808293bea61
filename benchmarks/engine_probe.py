"""One job on one bundle in a fresh process, through toolkit's Engine; prints what it cost as one JSON object.

    python -m benchmarks.engine_probe BUNDLE --prompt-tokens 256 --answer-tokens 64 --repeats 3

Other benchmarks run it as a child: peak memory is a figure of a whole process, and a second engine would spoil it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from toolkit import Bundle, Engine
from toolkit.bench_prompt import make_prompt
from toolkit.errors import EngineError, ToolkitError
from toolkit.worker_proxy import RemoteEngine


def job(
    bundle_path: str, *, n_prompt: int, n_answer: int, threads: int, repeats: int, warm_up: bool, in_process: bool = False
) -> dict[str, Any]:
    """Open the bundle, answer `repeats` times and read the memory of the process the engine runs in.

    Returns:
        check_s (hashes), open_s (engine), load_s (both), memory of the engine's process after loading and after answering, its
        peak_rss_bytes, and the metrics of each answer. The KV cache holds what prompt and answer need, as `toolkit run` opens it.
    """
    started = time.perf_counter()
    bundle = Bundle.open(bundle_path)
    checked = time.perf_counter()
    with Engine.open(bundle, threads=threads, expected_tokens=n_prompt + n_answer, isolated=False if in_process else None) as engine:
        opened = time.perf_counter()
        loaded = _memory(engine)
        prompt = make_prompt(lambda text: len(engine.tokenize(text)) + engine.native.n_start_tokens, n_prompt)
        if warm_up:
            _answer(engine, prompt, n_answer)
        answers = [_answer(engine, prompt, n_answer) for _ in range(repeats)]
        answered = _memory(engine)
        peak = engine.peak_rss_bytes()
    return {
        "check_s": checked - started,
        "open_s": opened - checked,
        "load_s": opened - started,
        "loaded": loaded,
        "answered": answered,
        "peak_rss_bytes": peak,
        "answers": answers,
    }


def _answer(engine: Engine, prompt: str, n_answer: int) -> dict[str, Any]:
    with engine.plain_session() as session:
        for _ in session.send(prompt, max_tokens=n_answer):
            pass
        assert session.metrics is not None
        metrics = session.metrics.as_dict()
    if metrics["n_generated_tokens"] < n_answer:
        raise EngineError(
            f"{engine.bundle.name} ended its answer after {metrics['n_generated_tokens']} tokens",
            why=f"figures are for {n_answer} tokens",
            fix="ask for another number of prompt tokens: --prompt-tokens",
        )
    return metrics


def _memory(engine: Engine) -> dict[str, int]:
    """Of the process the engine runs in."""
    from benchmarks.process_tree import read_memory, read_own_memory

    native = engine.native
    memory = read_memory(native.worker.pid) if isinstance(native, RemoteEngine) else read_own_memory()
    if memory is None:
        raise EngineError(f"the engine of {engine.bundle.name} ended while it was measured", fix="run it again")
    return {"rss_bytes": memory.rss_bytes, "anonymous_bytes": memory.anonymous_bytes, "mapped_bytes": memory.mapped_bytes}


def main() -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", metavar="BUNDLE")
    parser.add_argument("--prompt-tokens", type=int, default=256, metavar="N")
    parser.add_argument("--answer-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--repeats", type=int, default=1, metavar="N")
    parser.add_argument("--warm-up", action="store_true", help="answer once before measuring")
    parser.add_argument("--in-process", action="store_true", help="load the engine here, not in a process of its own")
    args = parser.parse_args()
    try:
        figures = job(
            args.bundle,
            n_prompt=args.prompt_tokens,
            n_answer=args.answer_tokens,
            threads=args.threads,
            repeats=args.repeats,
            warm_up=args.warm_up,
            in_process=args.in_process,
        )
    except ToolkitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
