from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import toolkit.cli
from toolkit.cli import COMMANDS, main
from toolkit.errors import BudgetError

_HELP = """
import sys, toolkit.cli
try:
    toolkit.cli.main(["--help"])
except SystemExit:
    print(*sys.modules, file=sys.stderr)
"""
_PRINTS_MUCH = """
import sys, toolkit.cli.inspect, toolkit.cli
toolkit.cli.inspect.run = lambda args: print("x" * 10**6, flush=True)
sys.exit(toolkit.cli.main(["inspect", "y"]))
"""
_NONSENSE = [[], ["rnu"], ["run"], ["run", "x"], ["run", "x", "y", "--max-tokens", "many"], ["verify"], ["inspect", "a", "b"], ["--nope"]]


def test_help_names_every_command_and_imports_none_of_them() -> None:
    result = subprocess.run([sys.executable, "-c", _HELP], capture_output=True, text=True, check=True)
    assert all(name in result.stdout and text in result.stdout for name, (_, text) in COMMANDS.items())
    loaded = set(result.stderr.split())
    assert not loaded & {module for module, _ in COMMANDS.values()}
    assert not {name.partition(".")[0] for name in loaded} & {"litert_lm", "numpy", "rich", "torch"}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_a_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    assert f"toolkit {name}" in capsys.readouterr().out.partition("examples:")[2]


@pytest.mark.parametrize("arguments", _NONSENSE, ids=" ".join)
def test_a_command_line_that_makes_no_sense_exits_2_with_a_way_out(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 3 and "why: " in lines[1] and "--help" in lines[2]
    assert captured.out == ""


def test_an_error_is_three_lines_on_stderr_and_with_json_also_an_object_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "/nothing/here", "x"]) == 4
    plain = capsys.readouterr()
    assert plain.out == "" and len(plain.err.splitlines()) == 3
    assert main(["run", "/nothing/here", "x", "--json"]) == 4
    as_json = capsys.readouterr()
    error = json.loads(as_json.out)["error"]
    assert error["code"] == 4 and "/nothing/here" in error["what"] and error["why"] and error["fix"]
    assert as_json.err.splitlines()[-3:] == plain.err.splitlines()


def raising(error: BaseException) -> Any:
    def run(args: Any) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BudgetError("too large", why="2 > 1", fix="buy"), 3, "too large"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (RuntimeError("boom"), 1, "RuntimeError: boom"),
    ],
)
def test_whatever_a_command_raises_becomes_its_exit_code(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("toolkit.cli.verify.run", raising(error))
    assert main(["verify", "x"]) == code
    captured = capsys.readouterr()
    assert said in captured.err and "Traceback" not in captured.err


def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("toolkit.cli.verify.run", raising(RuntimeError("boom")))
    for arguments in (["--debug", "verify", "x"], ["verify", "x", "--debug"]):
        assert main(arguments) == 1
        assert "Traceback" in capsys.readouterr().err


def test_a_prompt_after_two_dashes_is_not_taken_for_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("toolkit.cli.run.run", lambda args: seen.append(args.prompt) or 0)
    assert main(["run", "bundle", "--", "--debug"]) == 0
    assert seen == ["--debug"]


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"1.2.3 of {name}")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "1.2.3 of ondevice-toolkit\n"


def test_a_reader_that_goes_away_is_no_error_message() -> None:
    process = subprocess.Popen([sys.executable, "-c", _PRINTS_MUCH], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(30) == 1
    assert process.stderr.read() == b""


def test_commands_are_a_plain_dict_of_modules_that_offer_the_same_two_functions() -> None:
    for module, _ in COMMANDS.values():
        loaded = toolkit.cli.import_module(module)
        assert callable(loaded.add_parser) and callable(loaded.run)
