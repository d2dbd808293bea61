import contextlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from converters import cli
from tests.converters.small_model import SmallTarget, SmallVerifier, small_parts
from tests.mounts import mounted
from toolkit.bundle import Bundle
from toolkit.errors import FormatError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """`convert` with the small target in this process; gives a function that runs it and what it printed."""
    import converters.pipeline

    target, verifier = SmallTarget(), SmallVerifier()
    monkeypatch.setattr(converters.pipeline, "default_parts", lambda: small_parts(tmp_path / "cache", target, verifier=verifier))
    monkeypatch.setattr(cli, "_interrupt_on_termination", lambda: None)
    monkeypatch.setenv("ONDEVICE_TOOLKIT_CACHE", str(tmp_path / "toolkit"))
    monkeypatch.chdir(tmp_path)
    return target, verifier


def run(capfd, *arguments: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = cli.main(["small", "--to", "small", *arguments])
    out, err = capfd.readouterr()
    return code, out, err


def test_the_table_has_a_row_for_each_bundle_and_stdout_nothing_else(desk, capfd):
    code, out, err = run(capfd, "--recipe", "fp16,int4-g32")
    lines = out.splitlines()
    assert code == 0 and len(lines) == 3
    assert lines[0].split("  ")[0] == "bundle" and lines[0].endswith("verdict")
    assert lines[1].startswith("bundles/small-small-fp16") and lines[1].endswith("pass")
    assert lines[2].startswith("bundles/small-small-int4-g32") and lines[2].endswith("reported")
    assert "16.09" in lines[1] and "quantizing to fp16" in err
    Bundle.open(Path("bundles/small-small-fp16"), full_check=True)


def test_json_is_one_object_on_stdout(desk, capfd):
    code, out, _ = run(capfd, "--recipe", "int8", "--json")
    data = json.loads(out)
    assert code == 0 and out.count("\n") == 1
    assert data["bundles"][0]["recipe"] == "int8" and data["bundles"][0]["verdict"] == "pass"


def test_what_libraries_print_does_not_reach_stdout(desk, capfd):
    def noise(stage: str) -> None:
        print(f"python noise in {stage}")
        os.system("echo child noise")
        os.write(1, b"native noise\n")

    desk[0].before = noise
    code, out, err = run(capfd, "--json")
    assert code == 0 and json.loads(out)["bundles"]
    assert "python noise in lower" in err and "child noise" in err and "native noise" in err


def test_a_failed_gate_exits_6_and_says_why_in_three_lines(desk, capfd):
    code, out, err = run(capfd, "--recipe", "int4-g32", "--max-kl", "0.0001")
    assert code == 6 and out.splitlines()[1].endswith("fail")
    what, why, fix = err.splitlines()[-3:]
    assert "was not published" in what and why.startswith("  why: kl_mean") and fix.startswith("  fix: ")


@pytest.mark.parametrize("refused", [("int8,int8-hadamard", "--to", "small,gguf"), ("int4-g32", "--max-kl", "0.0001")])
def test_an_error_is_said_once(desk, capfd, monkeypatch, refused):
    import converters.pipeline

    parts = small_parts(Path("cache"), desk[0], SmallTarget(name="gguf"), verifier=desk[1])
    monkeypatch.setattr(converters.pipeline, "default_parts", lambda: parts)
    code, _, err = run(capfd, "--recipe", *refused)
    whats = [line for line, after in itertools.pairwise(err.splitlines()) if after.startswith("  why: ")]
    assert code and whats and [err.splitlines().count(what) for what in whats] == [whats.count(what) for what in whats]


def test_a_stage_that_breaks_is_said_once(desk, capfd):
    desk[0].fail_on["quantize int8"] = RuntimeError("no such kernel")
    code, _, err = run(capfd)
    assert code == 1 and err.count("cannot convert small-small-int8") == 1


def test_json_of_a_failed_gate_has_the_bundle_and_the_error(desk, capfd):
    code, out, _ = run(capfd, "--recipe", "fp16,int4-g32", "--max-kl", "0.0001", "--json")
    data = json.loads(out)
    assert code == 6 and data["error"]["code"] == 6 and [entry["verdict"] for entry in data["bundles"]] == ["pass", "fail"]
    assert data["bundles"][1]["error"]["what"] == data["error"]["what"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--recipe", "int3"), 2),
        (("--recipe", ","), 2),
        (("--context", "many"), 2),
        (("--context", "0"), 2),
        (("--max-memory", "8GB"), 2),
        (("--max-memory", "0MiB"), 2),
        (("--max-memory", "1B"), 3),
        (("--max-kl", "nan"), 2),
        (("--unknown",), 2),
        (("--out", "/proc/none"), 2),
        (("--out", "x" * 300), 2),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_refusals_are_three_lines_or_one_object_with_their_code(desk, capfd, arguments, code, as_json):
    got, out, err = run(capfd, *arguments, *(["--json"] if as_json else []))
    assert got == code
    lines = err.splitlines()
    assert lines[-1].startswith("  fix: ") and "Traceback" not in err
    if as_json:
        error = json.loads(out)["error"]
        assert error["code"] == code and error["fix"] and error["what"] in lines
    else:
        assert out == ""
    assert desk[0].calls in ([], ["check"])


def test_an_unknown_target_lists_the_known_ones(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["small", "--to", "tensorrt"]) == 2
    assert "known targets are" in capfd.readouterr().err


def test_debug_shows_the_traceback_and_without_it_there_is_none(desk, capfd):
    desk[0].fail_on["quantize int8"] = ZeroDivisionError("deep")
    code, _, err = run(capfd)
    assert code == 1 and "Traceback" not in err and "ZeroDivisionError: deep" in err
    code, _, err = run(capfd, "--debug")
    assert code == 1 and "Traceback" in err and "small_model.py" in err


def test_an_unforeseen_error_is_still_three_lines(desk, capfd, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("in the pipeline")

    monkeypatch.setattr("converters.pipeline.convert", broken)
    code, out, err = run(capfd)
    assert code == 1 and len(err.splitlines()) == 3 and out == ""


def test_an_interrupt_exits_130(desk, capfd):
    desk[0].fail_on["lower"] = KeyboardInterrupt()
    code, out, err = run(capfd)
    assert code == 130 and out == "" and "--resume" in err.splitlines()[-1]
    code, out, _ = run(capfd, "--json")
    assert code == 130 and json.loads(out)["error"]["code"] == 130


def test_a_second_run_says_that_it_is_there(desk, capfd):
    run(capfd)
    code, out, err = run(capfd)
    assert code == 0 and "(there already)" in out and "not converted again" in err


def test_every_option_reaches_the_request(tmp_path):
    options = cli._parser().parse_args(
        "m.gguf --to litert --recipe int8,fp16 --context 512 --out o --json --max-memory 2GiB --max-kl 0.1 --no-verify --force --resume "
        "--accept-license gemma --debug".split()
    )
    request = cli._request(options)
    assert request.source == "m.gguf" and request.targets == ("litert",) and request.recipes == ("int8", "fp16")
    assert request.context_length == 512 and request.out == Path("o") and request.max_memory_bytes == 2**31 and request.max_kl == 0.1
    assert (request.verify, request.force, request.resume, request.accept_license) == (False, True, True, "gemma")


def test_help_loads_nothing_heavy():
    code = """
import sys
from converters.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
heavy = {"numpy", "torch", "rich", "transformers", "converters.pipeline", "converters.read", "converters.checkpoint"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "--recipe" in done.stdout and "int4-g32" in done.stdout and "examples:" in done.stdout


def test_a_small_disk_is_refused_before_work(desk, capfd, tmp_path):
    with mounted(tmp_path / "disk", "size=8m") as disk:
        code, _, err = run(capfd, "--out", str(disk / "out"))
        assert code == 3 and "are free" in err and list(disk.iterdir()) == []
    assert desk[0].calls == ["check"]


def test_a_disk_that_fills_up_at_work_is_reported_and_resumed_elsewhere(desk, capfd, tmp_path, monkeypatch):
    import converters.pipeline

    monkeypatch.setattr(converters.pipeline, "check_disk", lambda needs: None)
    with mounted(tmp_path / "disk", "size=24k") as disk:
        code, _, err = run(capfd, "--out", str(disk / "out"))
        assert code == 3 and "the disk is full" in err and list(disk.iterdir()) == []
    desk[0].calls.clear()
    code, _, _ = run(capfd, "--resume")
    assert code == 0 and desk[0].calls == ["check", "assemble int8"]


def test_a_full_work_folder_is_reported(desk, capfd, tmp_path, monkeypatch):
    import converters.pipeline

    monkeypatch.setattr(converters.pipeline, "check_disk", lambda needs: None)
    with mounted(tmp_path / "cache", "size=200k"):
        code, _, err = run(capfd)
        assert code == 3 and "free" in err and not Path("bundles").exists()


def test_a_read_only_output_folder_is_refused_before_work(desk, capfd, tmp_path):
    with mounted(tmp_path / "disk", "size=1m,ro") as disk:
        code, _, err = run(capfd, "--out", str(disk / "out"))
    assert code == 2 and "no permission to write" in err and desk[0].calls == []


def test_a_folder_of_another_user_is_refused_before_work(desk, capfd, tmp_path):
    """The mode of a folder means nothing to root, so root tries it in a child that gives its rights up."""
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        os.chmod(folder, 0o755)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            os._exit(cli.main(["small", "--to", "small", "--out", str(locked / "out")]))
        os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    assert "no permission to write" in capfd.readouterr().err and list(locked.iterdir()) == []


def test_bundle_open_is_what_refuses_a_half_written_bundle(tmp_path):
    """Must-fail twin of every whole-bundle check here: a folder with files and no manifest is no bundle."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b/model.npz").write_bytes(b"x")
    with pytest.raises(FormatError):
        Bundle.open(tmp_path / "b", full_check=True)
