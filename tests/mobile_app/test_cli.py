from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mobile_app.cli import main
from mobile_app.messages import _table, user_language
from tests.mobile_app.test_recording import write_tone

ROOT = Path(__file__).parents[2]
SAID = (
    "I'm at pump room 3.\nPump three is leaking badly.\nPressure is two point five bar.\nAsk Dave Miller to replace the seal by Friday.\n"
)


@pytest.fixture(autouse=True)
def english_in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "en_US.UTF-8")


def write_text(text: str = SAID) -> str:
    Path("said.txt").write_text(text, "utf-8")
    return "said.txt"


def test_a_transcript_becomes_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--transcript", write_text(), "--out", "out", "--date", "2026-11-30", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads(Path("out/report.json").read_text("utf-8"))
    assert json.loads(printed.out)["actions"][0]["due"]["normal"] == "2026-12-04"
    assert "report written to out: findings 1, measurements 1, actions 1, open questions 0, not placed 0" in printed.err


def test_what_was_done_is_said_in_japanese_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--transcript", write_text("三号ポンプから油漏れ。\n"), "--out", "out", "--language", "ja"]) == 0
    assert "報告書を out に書きました: 所見 1" in capsys.readouterr().err


def test_the_same_command_twice_writes_once_and_another_note_needs_force(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["report", "--transcript", write_text(), "--out", "out"]
    assert (main(command), main(command)) == (0, 0)
    assert "is there already" in capsys.readouterr().err
    write_text("Another note.\n")
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0


def test_without_out_the_folder_is_named_after_the_note() -> None:
    assert main(["report", "--transcript", write_text()]) == 0
    assert Path("said-report/report.html").is_file()


def test_without_a_command_it_says_that_there_is_no_window_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 5
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and "voice-notes report" in lines[2]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["report", "none.wav"], 2, "there is no recording none.wav"),
        (["report"], 2, "no note was given"),
        (["report", "--transcript", "none.json"], 2, "there is no transcript"),
        (["report", "/dev/null"], 2, "/dev/null is not a recording"),
        (["report", "x.wav", "--out", ""], 2, "no folder was given to --out"),
        (["report", "x.wav", "--date", "soon"], 2, "--date soon is no day"),
        (["report", "x.wav", "--template", "none"], 2, "there is no template none"),
        (["report", "x.wav", "--language", "fr"], 2, "does not understand"),
        (["sing"], 2, "does not understand"),
    ],
)
def test_a_wrong_request_is_refused_and_leaves_nothing(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    lines = capsys.readouterr().err.splitlines()
    assert said in lines[0] and len(lines) == 3
    assert list(Path().iterdir()) == []


def test_a_missing_model_is_named_with_the_command_that_makes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tone(tmp_path / "note.wav")
    assert main(["report", "note.wav"]) == 5
    assert "fix: convert whisper-tiny.en --to litert --recipe int8 --out bundles" in capsys.readouterr().err
    assert main(["report", "note.wav", "--language", "ja"]) == 5
    assert "対処: convert whisper-base --to litert --recipe int8 --out bundles" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["note.wav"]


def test_a_silent_recording_makes_no_report_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tone(tmp_path / "note.wav", loudness=0.0)
    assert main(["report", "note.wav", "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"]["code"] == 1
    assert "microphone" in printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["note.wav"]


def test_a_transcript_without_a_word_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--transcript", write_text("...\n")]) == 4
    assert "says nothing" in capsys.readouterr().err


def test_messages_follow_the_locale_unless_a_language_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (user_language("ja"), user_language("en")) == ("ja", "en")
    monkeypatch.setenv("LANG", "ja_JP.UTF-8")
    assert (user_language(), user_language("en")) == ("ja", "en")
    monkeypatch.setenv("LC_ALL", "C")
    assert user_language() == "en"


def test_every_message_is_there_in_both_languages_and_names_the_same_things() -> None:
    import re

    english, japanese = _table()["en"], _table()["ja"]
    assert set(english) == set(japanese)
    for name, lines in english.items():
        if isinstance(lines, dict):
            assert set(lines) == set(japanese[name]) and (name == "result" or set(lines) == {"what", "why", "fix"})
            for line in lines:
                assert set(re.findall(r"\{(\w+)", lines[line])) == set(re.findall(r"\{(\w+)", japanese[name][line]))


def test_the_command_loads_no_third_party_package_for_a_transcript() -> None:
    write_text()
    code = (
        "import sys; from mobile_app.cli import main; code = main(['report', '--transcript', 'said.txt']);"
        "found = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names) - {'mobile_app', 'toolkit', '__main__'};"
        "print(code, sorted(name for name in found if not name.startswith(('_', 'sitecustomize'))))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)})
    assert result.stdout.split("\n")[0] == "0 []"


@pytest.mark.parametrize(("name", "shown"), [("a\n# b.txt", "a # b.txt"), ("a\u202eb.txt", "ab.txt"), ("a\udcffb.txt", "a b.txt")])
def test_a_files_name_is_shown_without_what_no_file_or_page_can_hold(name: str, shown: str) -> None:
    Path(name).write_text(SAID)
    assert main(["report", "--transcript", name, "--out", "out"]) == 0
    assert json.loads(Path("out/report.json").read_text("utf-8"))["source"]["name"] == shown


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_stdout_is_said_in_three_lines_and_the_report_is_there() -> None:
    command = [
        sys.executable,
        "-m",
        "mobile_app.cli",
        "report",
        "--transcript",
        str(Path(write_text()).resolve()),
        "--out",
        "out",
        "--json",
    ]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
    assert done.returncode == 1 and "stdout cannot be written" in done.stderr and "Traceback" not in done.stderr
    assert Path("out/report.json").is_file()
