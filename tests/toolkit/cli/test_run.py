from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_bundle import CONTEXT_LENGTH
from toolkit.answer import Answer
from toolkit.cli import main

pytestmark = pytest.mark.usefixtures("module_cache")

METRICS = {
    "ttft_s",
    "total_s",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
    "n_prompt_tokens",
    "n_generated_tokens",
    "load_s",
    "peak_rss_bytes",
    "context_length",
    "threads",
    "backend",
    "is_isolated",
    "is_forced",
    "n_restarts",
    "governor_events",
    "held_s",
    "energy_j",
    "energy_meter",
    "prefill_j_per_token",
    "decode_j_per_token",
}


def run_json(bundle: Path, *arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["run", str(bundle), "check the pump", "--json", *arguments]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_json_holds_the_promised_fields(chat_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(chat_bundle, "--max-tokens", "20", capsys=capsys)
    assert set(result) == {"text", "finish_reason", "metrics", "bundle", "seed"}
    assert set(result["metrics"]) == METRICS
    assert result["finish_reason"] == "length" and result["bundle"] == "tiny-litert-fp32"
    assert result["metrics"]["n_generated_tokens"] == 20
    assert 0 < result["metrics"]["ttft_s"] <= result["metrics"]["total_s"]
    assert result["metrics"]["context_length"] < 256, "no more context than prompt and answer need"


def test_the_answer_goes_to_stdout_and_its_cost_to_stderr(chat_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run_json(chat_bundle, "--max-tokens", "20", capsys=capsys)["text"]
    assert main(["run", str(chat_bundle), "check the pump", "--max-tokens", "20"]) == 0
    captured = capsys.readouterr()
    assert captured.out == text + "\n"
    assert captured.err.startswith("length: ") and "+ 20 tokens" in captured.err and "peak" in captured.err


def test_a_printed_seed_repeats_the_answer(chat_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = run_json(chat_bundle, "--max-tokens", "30", "--temperature", "1", capsys=capsys)
    again = run_json(chat_bundle, "--max-tokens", "30", "--temperature", "1", "--seed", str(drawn["seed"]), capsys=capsys)
    other = run_json(chat_bundle, "--max-tokens", "30", "--temperature", "1", "--seed", str(drawn["seed"] ^ 1), capsys=capsys)
    assert again["text"] == drawn["text"] != other["text"]


def test_stop_strings_system_context_and_threads_reach_the_engine(chat_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = run_json(chat_bundle, "--max-tokens", "30", capsys=capsys)["text"]
    stopped = run_json(chat_bundle, "--max-tokens", "30", "--stop", "never", "--stop", plain[9:12], capsys=capsys)
    assert stopped["text"] == plain.partition(plain[9:12])[0] and stopped["finish_reason"] == "stop"
    assert run_json(chat_bundle, "--max-tokens", "30", "--system", "be lazy", capsys=capsys)["text"] != plain
    fixed = run_json(chat_bundle, "--max-tokens", "30", "--context", "777", "--threads", "1", capsys=capsys)
    assert fixed["text"] == plain
    assert (fixed["metrics"]["context_length"], fixed["metrics"]["threads"]) == (777, 1)


def test_the_prompt_may_come_from_stdin(chat_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = run_json(chat_bundle, "--max-tokens", "20", capsys=capsys)["text"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("check the pump"))
    assert main(["run", str(chat_bundle), "-", "--max-tokens", "20"]) == 0
    assert capsys.readouterr().out == text + "\n"


def test_a_wrong_guess_of_the_prompts_length_costs_an_opening_only(chat_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = "Ж" * 200  # two bytes and two tokens each, where the guess is three bytes a token
    assert main(["run", str(chat_bundle), prompt, "--max-tokens", "20", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["metrics"]["n_prompt_tokens"] > 400 and result["metrics"]["n_generated_tokens"] == 20


def test_a_base_model_continues_the_prompt(base_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(base_bundle, "--max-tokens", "10", capsys=capsys)
    assert result["text"] and result["metrics"]["n_prompt_tokens"] < 12
    assert main(["run", str(base_bundle), "x", "--system", "y"]) == 2
    assert "base model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["--threads", "0"], 2, "threads"),
        (["--threads", "-3"], 2, "threads"),
        (["--max-tokens", "0"], 2, "max_tokens"),
        (["--max-tokens", "-1"], 2, "max_tokens"),
        (["--context", "0"], 2, "context"),
        (["--context", "-1"], 2, "a context of -1 tokens"),
        (["--context", str(CONTEXT_LENGTH + 1)], 2, "context"),
        (["--context", "5"], 2, "does not fit"),
        (["--temperature", "-1"], 2, "temperature"),
        (["--temperature", "nan"], 2, "temperature"),
        (["--top-k", "0"], 2, "top_k"),
        (["--top-k", "100000"], 2, "top_k"),
        (["--seed", "-1"], 2, "seed"),
        (["--stop", ""], 2, "stop"),
        (["--backend", "tensorrt"], 2, "tensorrt"),
        (["--max-memory", "1GB"], 2, "ambiguous"),
        (["--max-memory", "100KiB"], 3, "memory budget"),
    ],
)
def test_what_cannot_be_right_is_refused_with_its_exit_code(
    chat_bundle: Path, arguments: list[str], code: int, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(chat_bundle), "check the pump", *arguments]) == code
    captured = capsys.readouterr()
    assert named in captured.err and len(captured.err.splitlines()) == 3 and captured.out == ""


def test_a_prompt_longer_than_the_context_is_refused_with_the_numbers(chat_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(chat_bundle), "pump " * 5000]) == 2
    assert f"{CONTEXT_LENGTH} tokens" in capsys.readouterr().err


def test_a_flipped_byte_is_found_before_the_engine_sees_the_file(
    chat_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.backends.litert.LiteRtBackend.open_engine", None)
    damaged = tmp_path / "damaged"
    shutil.copytree(chat_bundle, damaged)
    data = bytearray((damaged / "model.litertlm").read_bytes())
    data[len(data) // 2] ^= 1
    (damaged / "model.litertlm").write_bytes(data)
    assert main(["run", str(damaged), "x"]) == 4
    assert "model.litertlm" in capsys.readouterr().err


def test_full_check_hashes_again(chat_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_json(chat_bundle, "--max-tokens", "1", capsys=capsys)
    hashed: list[Path] = []
    monkeypatch.setattr("toolkit.bundle.sha256_file", lambda path, advance: hashed.append(path) or "0" * 64)
    run_json(chat_bundle, "--max-tokens", "1", capsys=capsys)
    assert hashed == []
    assert main(["run", str(chat_bundle), "x", "--full-check"]) == 4
    assert len(hashed) == 1


def interrupted(*arguments: str) -> tuple[int, str, str]:
    """Start `toolkit`, send Ctrl-C when the first text appears; returns exit code, stdout and stderr."""
    process = subprocess.Popen([sys.executable, "-m", "toolkit.cli", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    first = process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    return process.returncode, (first + rest).decode(), errors.decode()


def test_ctrl_c_stops_prints_the_partial_texts_metrics_and_exits_130(chat_bundle: Path) -> None:
    code, out, err = interrupted("run", str(chat_bundle), "check the pump", "--max-tokens", "4000")
    assert code == 130
    assert len(out) > 5
    assert "cancelled: " in err and "first after" in err and "Traceback" not in err
    n_generated = int(err.partition(" + ")[2].partition(" ")[0])
    assert 0 < n_generated < 4000


_INTERRUPTS_ITSELF = """
import os, signal, sys
import toolkit.session
from toolkit.cli import main
real, sent = toolkit.session.Answer.take, []
def take(self, event):
    piece = real(self, event)
    if len(self.text) > 20 and not sent:
        sent.append(1)
        os.kill(os.getpid(), signal.SIGINT)
    return piece
toolkit.session.Answer.take = take
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_with_json_still_prints_the_object(chat_bundle: Path) -> None:
    arguments = ["run", str(chat_bundle), "check the pump", "--max-tokens", "4000", "--json"]
    result = subprocess.run([sys.executable, "-c", _INTERRUPTS_ITSELF, *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode == 130
    answer = json.loads(result.stdout)
    assert answer["finish_reason"] == "cancelled" and len(answer["text"]) > 20


_INTERRUPTED_WHILE_LOADING = """
import os, signal, sys, time
import toolkit.loader
from toolkit.cli import main
def open(self, plan, **options):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)
toolkit.loader.Loader.open = open
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_while_it_loads_prints_the_object_too(chat_bundle: Path) -> None:
    arguments = ["run", str(chat_bundle), "check the pump", "--json"]
    result = subprocess.run([sys.executable, "-c", _INTERRUPTED_WHILE_LOADING, *arguments], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (130, "interrupted\n")
    assert json.loads(result.stdout)["error"]["code"] == 130


@pytest.mark.parametrize("is_json", [True, False])
def test_an_engine_that_dies_leaves_its_text_its_cost_and_its_cause(
    chat_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_json: bool
) -> None:
    take, killed = Answer.take, list[int]()

    def kill_after_some_text(answer: Any, event: Any) -> Any:
        piece = take(answer, event)
        if len(answer.text) > 20 and not killed:
            killed.append(answer._native._worker.pid)
            os.kill(killed[0], signal.SIGSEGV)
        return piece

    monkeypatch.setattr(Answer, "take", kill_after_some_text)
    arguments = ["run", str(chat_bundle), "check the pump", "--max-tokens", "4000", *(["--json"] if is_json else [])]
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert "SIGSEGV" in err and "the engine of tiny-litert-fp32 crashed" in err
    if is_json:
        result = json.loads(out)
        assert result["finish_reason"] == "crashed" and len(result["text"]) > 20 and "SIGSEGV" in result["error"]["why"]
    else:
        assert len(out) > 20 and "crashed: " in err


def test_in_process_and_forced_are_said_in_the_metrics(chat_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = run_json(chat_bundle, "--max-tokens", "5", "--in-process", capsys=capsys)["metrics"]
    assert (inside["is_isolated"], inside["is_forced"]) == (False, False)
    forced = run_json(chat_bundle, "--max-tokens", "5", "--max-memory", "1MiB", "--force", capsys=capsys)["metrics"]
    assert (forced["is_isolated"], forced["is_forced"]) == (True, True)
