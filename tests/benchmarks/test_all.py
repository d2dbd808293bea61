"""`python -m benchmarks`: what is run, what is skipped and why, what fails. No benchmark is run here."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

import benchmarks.__main__ as everything
from benchmarks.__main__ import BENCHMARKS, CONVERTER, GEMMA, KNOWN, Place, cannot_have, run_command, run_one
from benchmarks.machine import ROOT
from toolkit.cache import CONFIG_VARIABLE
from toolkit.catalog import load_catalog
from toolkit.licenses import agree

README = (ROOT / "benchmarks" / "README.md").read_text("utf-8")


class Recorded:
    """Stands in for commands: keeps them, prints `stdout`, ends with `code`."""

    def __init__(self) -> None:
        self.code, self.stdout, self.commands = 0, "", list[list[str]]()

    def run(self, command: list[str], *, is_captured: bool = False) -> tuple[int, str]:
        self.commands.append(command)
        return self.code, self.stdout if is_captured else ""


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    stand_in = Recorded()
    monkeypatch.setattr(everything, "run_command", stand_in.run)
    return stand_in


def have(folder: Path, *bundles: str) -> Place:
    for name in bundles:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "manifest.json").write_text("{}")
    return Place(folder)


def test_a_command_runs_at_the_root_and_is_captured_only_when_asked_to() -> None:
    command = [sys.executable, "-c", "import os; print(os.getcwd()); raise SystemExit(3)"]
    assert run_command(command, is_captured=True) == (3, f"{ROOT}\n")
    assert run_command([sys.executable, "-c", "pass"]) == (0, "")


@pytest.mark.parametrize("name", KNOWN)
def test_every_benchmark_is_a_module_that_says_how_to_call_it(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    assert f"python -m benchmarks.{name}" in (module.__doc__ or "")
    assert callable(module.main)
    assert f"benchmarks.{name}" in README


def test_the_readme_names_no_benchmark_that_is_not_there() -> None:
    named = set(re.findall(r"python -m benchmarks\.(\w+)", README))
    assert named and named <= {path.stem for path in (ROOT / "benchmarks").glob("*.py")}


def test_bundles_that_are_there_are_given_to_the_benchmark(recorded: Recorded, tmp_path: Path) -> None:
    skipped: dict[str, str] = {}
    benchmark = next(one for one in BENCHMARKS if one.module == "decode_speed")
    place = have(tmp_path, *benchmark.bundles)
    assert run_one(benchmark, place, ["--json"], quick=True, skipped=skipped) == 0
    (command,) = recorded.commands
    paths = [str(tmp_path / name) for name in benchmark.bundles]
    assert command[1:] == ["-m", "benchmarks.decode_speed", *paths, "--json", "--rounds", "1"]
    assert skipped == {}


def test_missing_bundles_of_a_model_are_converted_in_one_command(recorded: Recorded, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.make_missing(["smollm2-135m-instruct-litert-int8", "smollm2-135m-instruct-litert-int4-g32"])
    (command,) = recorded.commands
    assert command[1:] == ["-m", "converters.cli", "smollm2-135m-instruct", "--recipe", "int8,int4-g32", "--out", str(tmp_path), "--json"]
    assert place.refused == {} and place.failed == {}


@pytest.mark.parametrize(
    ("stdout", "reason"),
    [
        ('{"bundles": [], "error": {"what": "it differs", "why": "kl_mean 0.05", "fix": "x", "code": 6}}', "it differs: kl_mean 0.05"),
        ("", "convert smollm2-135m-instruct failed with exit code 6"),
        ("[]", "convert smollm2-135m-instruct failed with exit code 6"),
    ],
)
def test_a_conversion_that_fails_is_a_reason_and_is_not_tried_again(recorded: Recorded, tmp_path: Path, stdout: str, reason: str) -> None:
    recorded.code, recorded.stdout = 6, stdout
    place, skipped = Place(tmp_path), dict[str, str]()
    benchmark = next(one for one in BENCHMARKS if one.module == "engine_overhead")
    for _ in range(2):
        assert run_one(benchmark, place, [], quick=False, skipped=skipped) is None
    assert len(recorded.commands) == 1
    assert skipped[f"engine_overhead: {benchmark.bundles[0]}"].startswith(reason)
    assert place.failed == {"convert smollm2-135m-instruct --recipe int8": 6}


def test_a_recipe_that_was_published_is_used_though_another_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(command: list[str], *, is_captured: bool) -> tuple[int, str]:
        have(tmp_path, "smollm2-135m-instruct-litert-int4-g32")
        return 6, ""

    monkeypatch.setattr(everything, "run_command", convert)
    place = Place(tmp_path)
    place.make_missing(["smollm2-135m-instruct-litert-int8", "smollm2-135m-instruct-litert-int4-g32"])
    assert set(place.refused) == {"smollm2-135m-instruct-litert-int8"}


def test_a_licence_that_was_not_accepted_skips_the_model_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path))
    monkeypatch.setattr(everything, "find_spec", lambda name: object())
    assert cannot_have(GEMMA, CONVERTER) == "its licence was not accepted: toolkit models pull gemma-3-270m --accept-license gemma"
    assert cannot_have("smollm2-135m-instruct", CONVERTER) is None
    agree(load_catalog().licenses["gemma"], "gemma", source=GEMMA)
    assert cannot_have(GEMMA, CONVERTER) is None


def test_each_benchmark_is_skipped_for_the_package_it_lacks_and_for_no_other(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path))
    agree(load_catalog().licenses["gemma"], "gemma", source=GEMMA)
    monkeypatch.setattr(everything, "find_spec", lambda name: None if name == "litert_torch" else object())
    place, skipped = have(tmp_path, "smollm2-135m-instruct-litert-int8"), dict[str, str]()
    for benchmark in BENCHMARKS:
        run_one(benchmark, place, [], quick=False, skipped=skipped)
    ran = {command[2].removeprefix("benchmarks.") for command in recorded.commands}
    assert ran == set(KNOWN) - {"conversion_cost"}, "the others have a bundle that is there, or read GGUF"
    assert skipped["conversion_cost smollm2-135m-instruct: smollm2-135m-instruct"] == (
        "litert_torch not installed: pip install 'ondevice-toolkit[convert]'"
    )
    assert "litert_torch not installed" in skipped["decode_speed: gemma-3-270m-litert-int8"]


def test_every_module_that_measures_is_listed() -> None:
    """Those with a parser of the harness are benchmarks; the rest are parts of one."""
    paths = [path for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "harness"]
    assert {path.stem for path in paths if "parser(__doc__)" in path.read_text("utf-8")} == set(KNOWN)


def test_the_command_fails_when_a_benchmark_fails_and_goes_on_with_the_next(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    have(tmp_path, *(name for benchmark in BENCHMARKS for name in benchmark.bundles))
    recorded.code = 1
    monkeypatch.setattr("sys.argv", ["benchmarks", "--bundles", str(tmp_path), "--only", "startup,engine_overhead"])
    assert everything.main() == 1
    assert [command[2] for command in recorded.commands] == ["benchmarks.startup", "benchmarks.engine_overhead"]
    assert "failed startup: exit code 1" in capsys.readouterr().out
    recorded.code = 0
    assert everything.main() == 0


def test_an_unknown_benchmark_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "--only", "speed"])
    with pytest.raises(SystemExit) as caught:
        everything.main()
    assert caught.value.code == 2
    assert "no benchmark is called speed" in capsys.readouterr().err
