"""Many conversions from one file: each a process of its own, on this machine or on a Ray cluster, one table at the end.

A batch needs no journal: a bundle that is there already is not made again, and a conversion that was interrupted goes on
from its last finished stage, so running the same file again is how a batch is resumed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from toolkit.errors import ToolkitError, UsageError

_LISTS = ("to", "recipe")
_TEXTS = ("source", "out", "max-memory", "accept-license", "adapter", "fit")
_CHOICES = {"encoders": ("none",)}
_NUMBERS = ("context", "max-kl")
_FLAGS = ("no-verify", "force")
_KEYS = (*_TEXTS, *_CHOICES, *_LISTS, *_NUMBERS, *_FLAGS)


@dataclass(frozen=True)
class BatchJob:
    """One call of `convert`.

    Args:
        source: What to convert.
        options: Its other options as words, e.g. ("--to", "litert,mlx", "--context", "4096").
    """

    source: str
    options: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        return (self.source, *self.options, "--resume", "--json")


@dataclass(frozen=True)
class BatchResult:
    """How one job ended: its exit code and the object it printed (`bundles`, `error` or both)."""

    job: BatchJob
    exit_code: int
    printed: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The entry of `jobs` that `--json` prints."""
        return {"source": self.job.source, "options": list(self.job.options), "exit_code": self.exit_code, **self.printed}


Runner = Callable[[Sequence[BatchJob]], Iterator[BatchResult]]


def read_jobs(path: Path) -> list[BatchJob]:
    """Read a batch file: a `[defaults]` table and `[[job]]` tables, keys spelled like the options of `convert`.

    Raises:
        UsageError: The file cannot be read, is not TOML, or a key or value in it is wrong.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read", why=error.strerror or str(error), fix="check the path given to --batch") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML", why=str(error), fix='write [[job]] tables with source = "..."') from error
    _require_known(path, "the file", data, ("defaults", "job"))
    defaults, jobs = data.get("defaults", {}), data.get("job", [])
    if not isinstance(defaults, dict) or not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        _refuse(path, "[defaults] must be one table and [[job]] a list of tables")
    if not jobs:
        _refuse(path, "it holds no [[job]]")
    return [_job(path, f"job {number}", defaults | job) for number, job in enumerate(jobs, 1)]


def _job(path: Path, where: str, fields: Mapping[str, Any]) -> BatchJob:
    _require_known(path, where, fields, _KEYS)
    if not isinstance(fields.get("source"), str) or not fields["source"]:
        _refuse(path, f"{where} has no source")
    options: list[str] = []
    for key, value in fields.items():
        if key in _FLAGS and isinstance(value, bool):
            options += [f"--{key}"] if value else []
        elif key in _LISTS and isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            options += [f"--{key}", ",".join(value)]
        elif _is_one_word(key, value):
            options += [] if key == "source" else [f"--{key}", str(value)]
        else:
            _refuse(path, f"{where}: {value!r} is no value for {key}")
    return BatchJob(fields["source"], tuple(options))


def _is_one_word(key: str, value: object) -> bool:
    """Whether an option takes this value as its one argument."""
    if key in _NUMBERS:
        return type(value) is int or (type(value) is float and key != "context")
    return isinstance(value, str) and bool(value) and (key in _TEXTS or value in _CHOICES.get(key, ()))


def _require_known(path: Path, where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            _refuse(path, f"{where} has {key!r}; known are {', '.join(known)}")


def _refuse(path: Path, why: str) -> NoReturn:
    raise UsageError(f"the batch file {path} cannot be used", why=why, fix="docs/guides/batch.md has an example")


def run_here(jobs: Sequence[BatchJob]) -> Iterator[BatchResult]:
    """Run the jobs one after the other on this machine; a job that dies is a result like any other."""
    for job in jobs:
        yield run_job(job)


def run_job(job: BatchJob) -> BatchResult:
    """Run one job in a process of its own; its progress goes to this process's stderr."""
    command = [sys.executable, "-m", "converters.cli", *job.words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        try:
            printed, _ = process.communicate()
        except BaseException:
            process.terminate()
            raise
    return BatchResult(job, process.returncode, _object(job, process.returncode, printed))


def _object(job: BatchJob, exit_code: int, printed: str) -> Mapping[str, Any]:
    try:
        data = json.loads(printed)
    except ValueError:
        data = None
    if isinstance(data, dict):
        return data
    died = ToolkitError(
        f"the conversion of {job.source} died", why=f"exit code {exit_code}, and it printed no result", fix="run it alone to see why"
    )
    return died.as_json()


def exit_code(results: Sequence[BatchResult]) -> int:
    """0 if every job ended well; else what all failures share, or 1 when they differ."""
    codes = {result.exit_code for result in results} - {0}
    return 0 if not codes else codes.pop() if len(codes) == 1 else 1
