"""A batch file becomes one command after the other; what is wrong in it is refused before the first begins."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converters import batch, cli
from converters.batch import BatchJob, BatchResult, exit_code, read_jobs, run_job
from toolkit.errors import UsageError

BATCH = """
[defaults]
out = "bundles"
recipe = ["int8", "int4-g32"]

[[job]]
source = "smollm2-135m-instruct"
to = ["litert", "mlx"]
context = 4096

[[job]]
source = "./my-model"
recipe = ["fp16"]
max-kl = 0.5
no-verify = true
force = false
"""


def write(folder: Path, text: str) -> Path:
    (folder / "jobs.toml").write_text(text, encoding="utf-8")
    return folder / "jobs.toml"


def test_a_job_has_the_options_of_the_command_and_the_defaults_it_does_not_override(tmp_path: Path) -> None:
    first, second = read_jobs(write(tmp_path, BATCH))
    assert first.words == (
        *("smollm2-135m-instruct", "--out", "bundles", "--recipe", "int8,int4-g32", "--to", "litert,mlx", "--context", "4096"),
        *("--resume", "--json"),
    )
    assert second.source == "./my-model"
    assert second.options == ("--out", "bundles", "--recipe", "fp16", "--max-kl", "0.5", "--no-verify")


def test_every_option_a_job_may_have_is_one_of_the_command(tmp_path: Path) -> None:
    jobs = read_jobs(write(tmp_path, BATCH + 'max-memory = "4GiB"\naccept-license = "gemma"\nadapter = "tuned"\nencoders = "none"\n'))
    parsed = [cli._parser().parse_args(job.words) for job in jobs]
    assert (parsed[0].recipe, parsed[0].context, parsed[0].resume) == ("int8,int4-g32", 4096, True)
    assert (parsed[1].max_memory, parsed[1].accept_license, parsed[1].no_verify) == ("4GiB", "gemma", True)
    assert (parsed[1].adapter, parsed[1].encoders) == ("tuned", "none")


def test_every_option_of_the_command_is_one_a_job_may_have() -> None:
    options = {action.dest.replace("_", "-") for action in cli._parser()._actions}
    of_the_command_alone = {"help", "json", "debug", "batch", "ray", "resume"}  # a batch resumes, and prints one table of all
    assert options - of_the_command_alone == set(batch._KEYS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "holds no [[job]]"),
        ("[[job]]\n", "job 1 has no source"),
        ('[[job]]\nsource = "a"\n[[job]]\nsource = ""\n', "job 2 has no source"),
        ('[[job]]\nsource = "a"\nrecipies = ["int8"]\n', "job 1 has 'recipies'; known are"),
        ('[[job]]\nsource = "a"\nrecipe = "int8"\n', "job 1: 'int8' is no value for recipe"),
        ('[[job]]\nsource = "a"\nrecipe = []\n', "is no value for recipe"),
        ('[[job]]\nsource = "a"\ncontext = true\n', "True is no value for context"),
        ('[[job]]\nsource = "a"\nforce = 1\n', "1 is no value for force"),
        ('[[job]]\nsource = "a"\ncontext = 4.5\n', "4.5 is no value for context"),
        ('[[job]]\nsource = "a"\nencoders = "all"\n', "'all' is no value for encoders"),
        ('[[job]]\nsource = "a"\nadapter = ""\n', "'' is no value for adapter"),
        ('job = "a"', "[[job]] a list of tables"),
        ("speed = 3\n", "the file has 'speed'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_jobs(write(tmp_path, text))
    assert why in caught.value.why and "jobs.toml" in caught.value.what


def test_a_file_that_is_not_there_or_not_toml_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_jobs(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="is not TOML"):
        read_jobs(write(tmp_path, "[[job"))


@given(st.binary(max_size=200))
def test_any_bytes_are_jobs_or_a_usage_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("batch") / "jobs.toml"
    path.write_bytes(content)
    try:
        assert read_jobs(path)
    except UsageError as error:
        assert error.why


def test_a_job_that_is_refused_is_a_result_with_its_error_and_code(tmp_path: Path) -> None:
    result = run_job(BatchJob(str(tmp_path / "none.gguf"), ("--out", str(tmp_path / "out"))))
    assert result.exit_code == result.printed["error"]["code"] > 0 and "none.gguf" in result.printed["error"]["what"]


def test_a_job_whose_process_dies_is_a_result_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    result = run_job(BatchJob("x", ()))
    assert result.exit_code == 1 and "died" in result.printed["error"]["what"]


def result_of(job: BatchJob, code: int) -> BatchResult:
    entry = {
        "name": f"{job.source}-bundle",
        "path": f"out/{job.source}",
        "target": "small",
        "recipe": "int8",
        "bytes": 1024,
        "bits_per_weight": 8.0,
        "kl_mean": 0.01,
        "kl_p99": 0.1,
        "top1_agreement": 0.9,
        "perplexity_ratio": 1.0,
        "verdict": "pass",
        "is_new": True,
    }
    error = {"error": {"what": "it failed", "why": "a reason", "fix": "another", "code": code}}
    return BatchResult(job, code, {"bundles": [entry]} if code == 0 else error)


def replace_runner(monkeypatch: pytest.MonkeyPatch, codes: Sequence[int]) -> None:
    def run(jobs: Sequence[BatchJob]) -> Iterator[BatchResult]:
        yield from map(result_of, jobs, codes)

    monkeypatch.setattr(batch, "run_here", run)


def test_all_jobs_end_in_one_table_and_the_failed_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_runner(monkeypatch, [0, 4])
    assert cli.main(["--batch", str(write(tmp_path, BATCH))]) == 4
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["bundle", "out/smollm2-135m-instruct"]
    assert "1 of 2 jobs: smollm2-135m-instruct" in err and "./my-model: it failed: a reason" in err


def test_json_of_a_batch_lists_jobs_and_all_bundles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_runner(monkeypatch, [0, 0])
    assert cli.main(["--batch", str(write(tmp_path, BATCH)), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [job["exit_code"] for job in data["jobs"]] == [0, 0] and len(data["bundles"]) == 2


def test_different_failures_share_no_code() -> None:
    job = BatchJob("x", ())
    assert exit_code([result_of(job, 0), result_of(job, 6)]) == 6
    assert exit_code([result_of(job, 4), result_of(job, 6)]) == 1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [([], "convert needs a SOURCE"), (["--ray", "auto"], "--ray needs --batch"), (["model", "--batch", "x.toml"], "not both")],
)
def test_a_source_or_a_batch_is_needed_and_never_both(arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert what in capsys.readouterr().err
