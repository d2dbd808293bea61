from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.toolkit.machine_root import GIB
from toolkit.cli import main
from toolkit.cli.doctor import engine_text
from toolkit.device.accelerators import Accelerator
from toolkit.device.profile import Device, probe_device
from toolkit.device.profile_file import read_device
from toolkit.diagnosis import ENGINES, Engine, EngineReport, diagnose

GOOD = 'import json\nprint("noise")\nprint(json.dumps({"uses": ["CPU"], "detail": "fine"}))'


def only(monkeypatch: pytest.MonkeyPatch, **engines: Engine) -> None:
    """These engines and llama.cpp are all there are."""
    monkeypatch.setattr("toolkit.diagnosis.ENGINES", {**engines, "gguf": ENGINES["gguf"]})


def report_of(
    monkeypatch: pytest.MonkeyPatch, question: str, *, distribution: str = "pytest", device: Device | None = None
) -> EngineReport:
    only(monkeypatch, litert=Engine("litert", distribution, "litert", question))
    report, _ = diagnose(device or probe_device(), limit_s=20)
    return report


def test_an_engine_says_what_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(monkeypatch, GOOD)
    assert report.is_available and report.uses == ("CPU",) and report.version == pytest.__version__


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ("raise ImportError('libGL.so.1 is missing')", "libGL.so.1"),
        ("import os; os.abort()", "exit code -6"),
        ("print('no JSON')", "Expecting value"),
        ("pass", "index"),
    ],
)
def test_an_engine_that_does_not_load_is_explained_and_does_not_end_us(monkeypatch: pytest.MonkeyPatch, question: str, why: str) -> None:
    report = report_of(monkeypatch, question)
    assert not report.is_available and why in report.why and "pip install --force-reinstall pytest" in report.fix


def test_a_missing_engine_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(monkeypatch, GOOD, distribution="a-distribution-nobody-has")
    assert report.version is None and report.fix == "pip install 'ondevice-toolkit[litert]'"


def test_a_processor_the_engine_refuses_is_named_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    pi_4 = read_device(b'ram = "4GiB"\ncores = 4\nisa = ["neon"]\n')
    report = report_of(monkeypatch, "import os; os.abort()", device=pi_4)
    assert not report.is_available and "LSE" in report.why and "abort" not in report.why
    allowed = report_of(monkeypatch, GOOD, device=replace(pi_4, isa=("neon", "lse")))
    assert allowed.is_available and allowed.why == ""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH; no other engine is asked, and llama.cpp's wheel is not installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    monkeypatch.setattr("toolkit.diagnosis._version", lambda distribution: None)
    only(monkeypatch)
    return tmp_path


def llama_server(path: Path, code: str) -> Path:
    path.write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
    path.chmod(0o755)
    return path


def test_llama_cpp_is_looked_for_on_the_path(path: Path) -> None:
    [report] = diagnose(probe_device())
    assert not report.is_available and "llama-server" in report.why and "pip install 'ondevice-toolkit[gguf]'" in report.fix
    said = "print('  CUDA0: a card (1 MiB)' if '--list-devices' in sys.argv else 'version: 11434 (abc)', file=sys.stderr)"
    program = llama_server(path / "llama-server", said)
    [report] = diagnose(probe_device())
    assert report.is_available and report.version == "11434 (abc)" and report.uses == ("CPU", "GPU")
    assert str(program) in report.detail and "CUDA0" in report.detail


def test_a_llama_server_named_by_the_environment_comes_before_the_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llama_server(path / "llama-server", "print('version: on the path')")
    monkeypatch.setenv("LLAMA_SERVER", str(llama_server(path / "mine", "print('version: named')")))
    [report] = diagnose(probe_device())
    assert report.is_available and report.version == "named"
    monkeypatch.setenv("LLAMA_SERVER", str(path / "nothing"))
    [report] = diagnose(probe_device())
    assert not report.is_available and "$LLAMA_SERVER" in report.why


def test_a_llama_server_that_does_not_run_says_so(path: Path) -> None:
    llama_server(path / "llama-server", "sys.exit(3)")
    [report] = diagnose(probe_device())
    assert not report.is_available and "exit status 3" in report.why and "build llama.cpp again" in report.fix


def test_what_sessions_can_do_and_an_accelerator_left_alone_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = '{"version": "2", "uses": ["CPU"], "detail": "fine", "capabilities": {"keeps_cache": true, "clone": false}}'
    report = report_of(monkeypatch, f"print({facts!r})", device=replace(probe_device(), accelerators=(Accelerator("gpu", "a card"),)))
    assert report.capabilities == {"keeps_cache": True, "clone": False} and report.unused == ("GPU a card",) and report.version == "2"
    assert "not used: GPU a card" in engine_text(report) and engine_text(report).endswith("can: keeps cache")


def test_the_command_prints_one_object_or_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    only(monkeypatch, litert=Engine("litert", "pytest", "litert", GOOD))
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [engine["name"] for engine in found["engines"]] == ["litert", "gguf"]
    assert 0 < found["device"]["free_memory_bytes"] < 2**20 * GIB and found["device"]["best_threads"] >= 1
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "litert engine" in out and "isolation" in out and "memory" in out
