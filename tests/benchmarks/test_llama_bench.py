"""Reading llama-bench's JSON: what it prints, what it must not be taken for, and a stand-in program that prints it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.llama_bench import VARIABLE, find_llama_bench, parse_llama_bench, run_llama_bench
from toolkit.errors import FormatError, ToolkitError


def row(n_prompt: int, n_gen: int, n_depth: int, rates: list[float], **changes: Any) -> dict[str, Any]:
    """One object of llama-bench's array, cut to what says something."""
    fields = {"build_commit": "abc1234", "build_number": 7000, "model_type": "llama ?B Q4_1", "n_threads": 2, "avg_ts": 0.0}
    return {**fields, "n_prompt": n_prompt, "n_gen": n_gen, "n_depth": n_depth, "samples_ts": rates, **changes}


ROWS = [row(256, 0, 0, [340.0, 350.0]), row(0, 64, 0, [131.0]), row(256, 0, 256, [300.0]), row(0, 64, 256, [108.0, 110.0])]


def test_each_test_is_found_by_prompt_answer_and_depth() -> None:
    peer = parse_llama_bench(json.dumps(ROWS))
    assert peer.build == "b7000 abc1234"
    assert peer.rates(n_prompt=256, n_depth=0) == (340.0, 350.0)
    assert peer.rates(n_generated=64, n_depth=256) == (108.0, 110.0)
    assert peer.rates(n_generated=64, n_depth=0) != peer.rates(n_generated=64, n_depth=256)  # the mutant: depth ignored


def test_a_test_that_was_not_run_is_an_error_and_no_other_ones_rate() -> None:
    peer = parse_llama_bench(json.dumps(ROWS[:2]))
    with pytest.raises(FormatError, match=r"no test \(0, 64, 256\)"):
        peer.rates(n_generated=64, n_depth=256)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        "[1]",
        "| model | size |",
        json.dumps([row(1, 0, 0, [])]),
        json.dumps([row(1, 0, 0, [0.0])]),
        json.dumps([row(1, 0, 0, [-1.0])]),
        '[{"samples_ts": [NaN], "n_prompt": 1, "n_gen": 0, "n_depth": 0, "build_number": 1, "build_commit": "a"}]',
        json.dumps([{name: value for name, value in ROWS[0].items() if name != "n_depth"}]),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="something else than its JSON"):
        parse_llama_bench(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(ROWS[0])), inner, max_size=10),
    max_leaves=20,
)


@given(json_values)
def test_no_json_crashes_the_reader(value: Any) -> None:
    try:
        parse_llama_bench(json.dumps(value))
    except FormatError:
        pass


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A program that prints what llama-bench would, and keeps its arguments."""
    program = tmp_path / "llama-bench"
    answer = json.dumps(json.dumps(ROWS))
    body = f"import sys\nopen({str(tmp_path / 'arguments')!r}, 'w').write(' '.join(sys.argv[1:]))\nprint({answer})\n"
    program.write_text(f"#!{sys.executable}\n{body}")
    program.chmod(0o755)
    return program


def test_the_program_is_asked_for_exactly_the_job(stand_in: Path, tmp_path: Path) -> None:
    peer, cost = run_llama_bench(stand_in, Path("m.gguf"), n_prompt=256, n_generated=64, depths=(0, 256), threads=2, repeats=3)
    assert (tmp_path / "arguments").read_text() == "-m m.gguf -p 256 -n 64 -d 0,256 -t 2 -r 3 -o json"
    assert len(peer.tests) == 4 and cost.exit_code == 0


def test_a_peer_that_fails_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_text("#!/bin/sh\necho 'error: no such model' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(ToolkitError, match="llama-bench on m.gguf failed") as caught:
        run_llama_bench(program, Path("m.gguf"), n_prompt=1, n_generated=1, depths=(0,), threads=1, repeats=1)
    assert caught.value.why == "error: no such model"


def test_the_program_is_found_as_given_then_by_the_environment_then_on_the_path(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_llama_bench(None) is None
    assert find_llama_bench(str(tmp_path / "other")) is None
    assert find_llama_bench(str(stand_in)) == stand_in
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_llama_bench(None) == stand_in
    monkeypatch.setenv(VARIABLE, "/nowhere/at-all")
    assert find_llama_bench(None) is None
