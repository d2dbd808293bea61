from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_bundle import CONTEXT_LENGTH
from tests.toolkit.small_manifest import small_bundle
from toolkit.bench import Round, Side
from toolkit.bench_record import COMPARED, FIGURES, BenchRecord
from toolkit.cli import main
from toolkit.cli.bench_table import table

pytestmark = pytest.mark.usefixtures("module_cache")

SMALL = ("--rounds", "2", "--prompt-tokens", "32", "--new-tokens", "8")
OBJECT = {"started_at", "settings", "machine", "is_complete", "busy_share", "was_busy", "bundles", "notes"}
BUNDLE = {
    "label",
    "bundle",
    "backend",
    "versions",
    "threads",
    "context_length",
    "is_isolated",
    "is_forced",
    "energy_meter",
    "n_prompt_tokens",
    "n_generated_tokens",
    "figures",
    "governor_events",
}
GUIDE = Path(__file__).parents[3] / "docs/guides/bench.md"


@pytest.fixture(autouse=True)
def is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else this machine does while tests run."""
    set_busy(monkeypatch, 0.0)


def set_busy(monkeypatch: pytest.MonkeyPatch, *shares: float) -> None:
    """What the machine is busy with at each look; the last one from then on."""
    left = list(shares)
    monkeypatch.setattr("toolkit.cli.bench.measure_busy_share", lambda: left.pop(0) if len(left) > 1 else left[0])


def test_json_holds_the_documented_fields_of_a_real_bundle(chat_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(chat_bundle), "--json", *SMALL, "--threads", "1"]) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert set(told) == OBJECT and told["is_complete"] is True and told["was_busy"] is False
    (one,) = told["bundles"]
    assert set(one) == BUNDLE and list(one["figures"]) == list(FIGURES)
    assert (one["bundle"], one["backend"], one["threads"], one["is_isolated"]) == ("tiny-litert-fp32", "litert", 1, True)
    assert one["n_prompt_tokens"] == [32, 32] and one["n_generated_tokens"] == [8, 8]
    assert one["context_length"] < 128, "no more than the work needs"
    for name in ("load_s", "ttft_s", "prefill_tokens_per_s", "decode_tokens_per_s", "peak_rss_bytes"):
        figure = one["figures"][name]
        assert figure["n"] == 2 == len(figure["values"]) and 0 < figure["min"] <= figure["median"] <= figure["max"]
    assert one["figures"]["peak_rss_bytes"]["min"] > one["figures"]["anonymous_rss_bytes"]["max"] > 2**20
    assert "round 2 of 2: tiny-litert-fp32" in captured.err
    assert "litert-lm-api" in one["versions"] and told["machine"]["python"] == sys.version.split()[0]


def test_a_comparison_prints_both_and_their_ratios_round_by_round(
    chat_bundle: Path, base_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs the convert extra")
    plot = tmp_path / "bench.svg"
    assert main(["bench", str(chat_bundle), "--vs", str(base_bundle), *SMALL, "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    first, second = "tiny-litert-fp32", "tiny-base-litert-fp32"
    assert f"{first} / {second}" in out and "round 1  round 2" in out
    assert out.index(f"{first}  (litert") < out.index(f"{second}  (litert") < out.index(f"{first} / {second}")
    assert plot.read_text("utf-8").startswith("<?xml") and list(tmp_path.iterdir()) == [plot]


def test_in_process_it_measures_too(chat_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(chat_bundle), "--json", *SMALL, "--in-process", "--context", "200"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["bundles"]
    assert (one["is_isolated"], one["context_length"]) == (False, 200)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--rounds", "0"], "--rounds 0"),
        (["--rounds", "100000"], "--rounds 100000"),
        (["--rounds", "many"], "many"),
        (["--prompt-tokens", "0"], "--prompt-tokens 0"),
        (["--new-tokens", "-1"], "--new-tokens -1"),
        (["--threads", "0"], "0 threads"),
        (["--context", "0"], "context of 0"),
        (["--context", str(CONTEXT_LENGTH + 1)], "context"),
        (["--context", "100"], "use --context 320"),
        (["--prompt-tokens", str(CONTEXT_LENGTH)], f"its context holds {CONTEXT_LENGTH}"),
        (["--prompt-tokens", "1"], "--prompt-tokens 2"),
        (["--backend", "tensorrt"], "tensorrt"),
        (["--backend", "litert,litert"], "names 2 backends"),
        (["--vs", ""], "without a name"),
        (["--vs", "a,,b"], "without a name"),
        (["--plot", "bench.txt"], ".svg"),
        (["--plot", "FOLDER.svg"], "it is a folder"),
        (["--plot", "/nowhere/at/all/bench.svg"], "mkdir"),
    ],
)
def test_what_cannot_be_right_is_refused_with_exit_code_2(
    chat_bundle: Path,
    tmp_path: Path,
    arguments: list[str],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FOLDER.svg").mkdir()
    assert main(["bench", str(chat_bundle), *arguments]) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert named in captured.err and len(lines) == 3 and captured.out == ""
    assert lines[1].startswith("  why: ") and lines[2].startswith("  fix: ")


def test_the_fix_for_too_many_tokens_works(chat_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(chat_bundle), "--prompt-tokens", "5000"]) == 2
    fix = capsys.readouterr().err.rpartition("fix: use ")[2].split()
    assert sum(int(number) for number in fix[1::2]) <= CONTEXT_LENGTH
    assert main(["bench", str(chat_bundle), "--rounds", "1", "--json", *fix]) == 0


def test_a_speech_bundle_and_a_folder_that_is_none_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(small_bundle(tmp_path / "speech", spec={"model_type": "whisper"}))]) == 2
    assert "toolkit transcribe" in capsys.readouterr().err
    assert main(["bench", str(tmp_path / "none"), "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["error"]["code"] == 4


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(
    chat_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("toolkit.bench_plot.find_spec", lambda name: None)
    monkeypatch.setattr("toolkit.cli.bench.measure_sides", None)
    assert main(["bench", str(chat_bundle), "--plot", str(tmp_path / "bench.png")]) == 5
    assert "pip install matplotlib" in capsys.readouterr().err


def test_a_plot_that_cannot_be_written_costs_no_figure(
    chat_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="needs the convert extra")

    def fail(self: object, path: Path, **options: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure.Figure, "savefig", fail)
    assert main(["bench", str(chat_bundle), *SMALL, "--json", "--plot", str(tmp_path / "bench.svg")]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["is_complete"] is True and told["error"]["why"] == "No space left on device"
    assert list(tmp_path.iterdir()) == [], "no half of a drawing stays"


def test_a_busy_machine_compares_nothing_unless_forced(
    chat_bundle: Path, base_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_busy(monkeypatch, 0.5)
    command = ["bench", str(chat_bundle), "--vs", str(base_bundle), *SMALL, "--json"]
    assert main(command) == 1
    captured = capsys.readouterr()
    assert set(json.loads(captured.out)) == {"error"} and len(captured.err.splitlines()) == 3
    assert main([*command, "--force"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == OBJECT | {"ratios"} and told["was_busy"] is True and told["settings"]["force"] is True
    assert list(told["ratios"][0]["figures"]) == list(COMPARED)


def test_what_was_measured_before_a_failure_is_printed_with_it(
    chat_bundle: Path, base_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", str(chat_bundle), "--vs", str(base_bundle), *SMALL]
    set_busy(monkeypatch, 0.0, 0.0, 0.0, 0.0, 0.9)
    assert main([*command, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["is_complete"] is False and told["error"]["code"] == 1
    assert [one["figures"]["ttft_s"]["n"] for one in told["bundles"]] == [1, 1]
    set_busy(monkeypatch, 0.0, 0.0, 0.0, 0.0, 0.9)
    assert main(command) == 1
    captured = capsys.readouterr()
    assert "ended early: 1 of tiny-litert-fp32, 1 of tiny-base-litert-fp32, of 2 rounds each" in captured.out
    assert "are not compared while the machine is busy" in captured.err


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_prints_the_rounds_before_it_and_exits_130(chat_bundle: Path, as_json: bool) -> None:
    command = [sys.executable, "-m", "toolkit.cli", "bench", str(chat_bundle), "--rounds", "900", "--prompt-tokens", "32"]
    process = subprocess.Popen(
        command + ["--json"] * as_json, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy()
    )
    assert process.stderr is not None
    assert any(line.startswith("round 1 of 900") for line in process.stderr)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130 and error.splitlines()[-1] == "interrupted"
    if as_json:
        told = json.loads(out)
        assert told["error"]["code"] == 130 and told["is_complete"] is False
        assert told["bundles"][0]["figures"]["ttft_s"]["n"] >= 1
    else:
        assert "first token" in out and "ended early: " in out


def record_of(tmp_path: Path, **figures: float) -> BenchRecord:
    """One bundle, two rounds, of which only these figures are known."""
    from toolkit.bench import BenchJob
    from toolkit.bundle import Bundle
    from toolkit.metrics import Metrics

    event = {"state": "slow", "why": "38.0 °C"}
    metrics = Metrics(
        ttft_s=0.1,
        total_s=1.0,
        prefill_tokens_per_s=None,
        decode_tokens_per_s=None,
        n_prompt_tokens=32,
        n_generated_tokens=8,
        load_s=0.1,
        peak_rss_bytes=None,
        context_length=64,
        threads=2,
        backend="litert",
        governor_events=(event,),
        held_s=0.5,
    )
    told: dict[str, float | None] = {name: figures.get(name) for name in FIGURES}
    side = Side("small", Bundle.unchecked(small_bundle(tmp_path / "small")), None, [Round(dict(told), metrics, None) for _ in range(2)])
    return BenchRecord(BenchJob(rounds=2, prompt_tokens=32, new_tokens=8), [side])


def test_the_table_says_unknown_names_the_governors_events_and_what_must_be_known(tmp_path: Path) -> None:
    lines = table(record_of(tmp_path, load_s=0.25, energy_j=12.3, held_s=0.5, peak_rss_bytes=3 * 2**20)).splitlines()
    by_name = {line[2:18].strip(): line[18:].split() for line in lines if line.startswith("  ")}
    assert by_name["load"] == ["2", *(["250.0", "ms"] * 3)]
    assert by_name["energy"][1:3] == ["12.3", "J"] and by_name["peak RSS"][1:3] == ["3", "MiB"]
    assert by_name["temperature"] == ["unknown"] and by_name["decode"] == ["unknown"]
    assert "anonymous" not in by_name, "what the system does not tell apart is left out"
    assert "  round 2: governor slow (38.0 °C)" in lines
    assert lines[-2:] == [
        "how busy the machine was with other work is not known here",
        "the governor held small: its rates are those of a device that slows itself down",
    ]


def test_the_guide_lists_every_field() -> None:
    text = GUIDE.read_text("utf-8")
    names = sorted(OBJECT | BUNDLE | set(FIGURES) | {"ratios"})
    assert [name for name in names if f"`{name}`" not in text] == []
