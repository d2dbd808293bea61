from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.toolkit.small_manifest import small_bundle
from toolkit.cli import main

MIB = 2**20
SPEC = {
    "model_type": "llama",
    "vocab_size": 50_000,
    "hidden_size": 576,
    "n_heads": 9,
    "n_kv_heads": 3,
    "head_dim": 64,
    "layer_types": ["full"] * 30,
}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """135 MB of weights at 8 bits and 46,080 bytes of KV cache a token."""
    return small_bundle(tmp_path / "small-litert-int8", spec=SPEC, memory={"weights_bytes": 135_000_000})


def planned(*arguments: str | Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    assert main(["plan", *map(str, arguments), "--json"]) == code
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_json_holds_the_promised_fields_whose_parts_add_up(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(bundle, "--ram", "2GiB", "--cores", "4", "--context", "1000", capsys=capsys)
    assert (plan["fits"], plan["context_length"], plan["threads"], plan["backend"]) == (True, 1000, 4, "litert")
    assert sum(plan["parts"].values()) == plan["estimated_peak_rss_bytes"]
    assert plan["parts"]["weights_bytes"] == 135_000_000
    assert plan["parts"]["kv_cache_bytes"] == 1000 * 46_080
    assert (plan["available_bytes"], plan["limited_by"]) == (2048 * MIB, "--ram")


def test_what_does_not_fit_exits_3_with_settings_that_do(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need = planned(bundle, "--ram", "2GiB", "--context", "2048", capsys=capsys)["estimated_peak_rss_bytes"]
    refused = planned(bundle, "--ram", str(need - 1), "--context", "2048", capsys=capsys, code=3)
    assert refused["fits"] is False and refused["error"]["code"] == 3
    context = refused["error"]["fix"].partition("--context ")[2].split()[0]
    assert planned(bundle, "--ram", str(need - 1), "--context", context, capsys=capsys)["fits"] is True
    assert planned(bundle, "--ram", str(need), "--context", "2048", capsys=capsys)["fits"] is True
    assert main(["plan", str(bundle), "--ram", "1MiB"]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_the_first_of_several_bundles_that_fits_is_planned(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = small_bundle(tmp_path / "large-litert-fp32", spec=SPEC, memory={"weights_bytes": 540_000_000}, bits_per_weight=32.0)
    assert planned(large, bundle, "--ram", "2GiB", capsys=capsys)["bundle"] == "large-litert-fp32"
    small = planned(large, bundle, "--ram", "512MiB", capsys=capsys)
    assert small["bundle"] == "small-litert-int8"
    assert small["rejected"][0]["bundle"] == "large-litert-fp32" and "--ram" in small["rejected"][0]["why"]


def test_forced_it_plans_what_does_not_fit_and_says_so(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(bundle, "--ram", "100MiB", "--force", capsys=capsys)
    assert (plan["fits"], plan["is_forced"]) == (False, True)


PI_4 = 'name = "Raspberry Pi 4"\nram = "4GiB"\nfree_ram = "3GiB"\ncores = 4\nisa = ["neon"]\n'


def test_a_core_without_lse_gets_another_targets_bundle(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pi4.toml").write_text(PI_4)
    assert main(["plan", str(bundle), "--device", str(tmp_path / "pi4.toml"), "--json"]) == 5
    error = json.loads(capsys.readouterr().out)["error"]
    assert "LSE" in error["why"] and "--to onnx,gguf" in error["fix"]
    (tmp_path / "pi5.toml").write_text(PI_4.replace('["neon"]', '["neon", "lse"]'))
    assert planned(bundle, "--device", tmp_path / "pi5.toml", capsys=capsys)["threads"] == 4


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--ram", "2GB"], 2),
        (["--context", "0"], 2),
        (["--context", "9999"], 2),
        (["--cores", "0"], 2),
        (["--threads", "0"], 2),
        (["--threads", "-3"], 2),
        (["--tokens", "-5"], 2),
        (["--tokens", "99999999"], 2),
        (["--tokens", "2049"], 2),
        (["--context", "256", "--tokens", "257"], 2),
        (["--device", "none.toml"], 4),
    ],
)
def test_what_cannot_be_right_is_refused(bundle: Path, arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(bundle), *arguments]) == code
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_job_that_fills_the_context_is_planned(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(bundle, "--tokens", "2048", capsys=capsys)["context_length"] == 2048
    assert planned(bundle, "--context", "256", "--tokens", "256", capsys=capsys)["context_length"] == 256
    assert main(["plan", str(bundle), "--tokens", "2049"]) == 2
    assert "2048" in capsys.readouterr().err


def test_a_speech_bundle_for_another_target_than_litert_runs_on_nothing_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for target, code in (("onnx", 5), ("litert", 0)):
        bundle = small_bundle(tmp_path / target, target=target, spec={**SPEC, "model_type": "whisper"})
        assert main(["plan", str(bundle), "--ram", "2GiB"]) == code
    err = capsys.readouterr().err
    assert "speech" in err and "convert SOURCE --to litert" in err and "," not in err.splitlines()[2] and len(err.splitlines()) == 3


def test_an_empty_name_is_not_the_current_folder(bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bundle)
    assert main(["plan", ""]) == 2
    assert "no bundle is named" in capsys.readouterr().err


def test_a_table_is_for_people(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(bundle)]) == 0
    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert rows["fits"] == "yes" and "MiB" in rows["memory"] and "litert" in rows["runs"]


_WITHOUT_ENGINES = """
import sys
for name in ("litert_lm", "numpy", "torch", "mlx", "onnxruntime", "onnxruntime_genai", "psutil"):
    sys.modules[name] = None
from toolkit.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_no_engine_need_be_installed(bundle: Path) -> None:
    command = [sys.executable, "-c", _WITHOUT_ENGINES, "plan", str(bundle), "--ram", "2GiB", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fits"] is True
