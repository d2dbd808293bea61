"""The hub library's cache on this disk, read without that library: what is whole, how large, and how to delete it.

Layout (huggingface_hub's documentation, "Understand caching"): models--ORG--NAME/{refs/BRANCH, snapshots/COMMIT/FILE,
blobs/HASH}; files are links to blobs, and a blob is named by its SHA-256 (large files) or git's SHA-1 (all others).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.cache import cache_directory, cache_root, directory_bytes, remove_directory, write_error
from toolkit.catalog import HfSource
from toolkit.errors import FormatError
from toolkit.progress import Step

_COMMIT = re.compile(r"[0-9a-f]{40}")
_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_SIDE_FILE = re.compile(r"\w[\w.-]*\.(json|txt|model|jinja)")
_INDEX = "model.safetensors.index.json"
_MAX_RECORD_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Snapshot:
    """One repository at one commit on this disk; `sha256` by file name, `license_id` as the model card states it."""

    path: Path
    repo: str
    revision: str
    sha256: dict[str, str]
    license_id: str | None


@dataclass(frozen=True)
class HubFile:
    """One file of a repository: `sha256` when it lies in large file storage, else git's SHA-1 as `blob_id`."""

    name: str
    bytes: int
    sha256: str | None
    blob_id: str | None


def hub_cache() -> Path:
    """Where the hub's library keeps repositories: HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub."""
    if os.environ.get("HF_HUB_CACHE"):
        return Path(os.environ["HF_HUB_CACHE"]).expanduser()
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HF_HOME") or cache_home / "huggingface").expanduser() / "hub"


def repository_directory(repo: str) -> Path:
    """The folder of one repository in the hub's cache; it may not exist."""
    return hub_cache() / ("models--" + repo.replace("/", "--"))


def is_commit(revision: str) -> bool:
    """Whether a revision is a full commit id, which always means the same bytes."""
    return _COMMIT.fullmatch(revision) is not None


def choose_files(source: HfSource, files: Mapping[str, HubFile]) -> tuple[HubFile, ...]:
    """The files a conversion needs: JSON, text, tokenizer and template files of the top folder, and safetensors weights.

    Raises:
        FormatError: There is no config.json, or there are no weights in safetensors form.
    """
    weights = [file for name, file in files.items() if _WEIGHTS.fullmatch(name)]
    if "model.safetensors" in files:
        weights = [files["model.safetensors"]]
    if "config.json" not in files or not weights:
        others = sorted(name for name in files if name.endswith((".bin", ".gguf", ".onnx", ".h5", ".msgpack", ".safetensors")))
        raise FormatError(
            f"{source.uri} is not a transformers checkpoint in safetensors form",
            why=f"it holds {', '.join(others[:3]) or f'{len(files)} files'} and no {'config.json' if weights else 'model.safetensors'}",
            fix="use a repository that has both; a .gguf file can be downloaded and given by its path",
        )
    sides = [file for name, file in files.items() if _SIDE_FILE.fullmatch(name)]
    return (*sorted(sides, key=lambda file: file.name), *sorted(weights, key=lambda file: file.name))


def checked_hash(file: HubFile, path: Path, step: Step) -> str:
    """SHA-256 of a cached file, after comparing it with what the hub states of it.

    Raises:
        FormatError: It differs; the file is removed, so that the next run fetches it again.
    """
    sha256, git = hashlib.sha256(), hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as stream:
        while piece := stream.read(2**20):
            sha256.update(piece)
            git.update(piece)
            step.advance(len(piece))
    found, expected = (sha256.hexdigest(), file.sha256) if file.sha256 else (git.hexdigest(), file.blob_id)
    if expected is not None and found != expected:
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise FormatError(
            f"{file.name} is not the file the hub states; it was removed",
            why=f"its hash is {found}, stated is {expected}",
            fix="run the same command again",
        )
    return sha256.hexdigest()


def local_snapshot(source: HfSource, step: Step) -> Snapshot | None:
    """The repository at this revision, if it is whole on this disk. Never touches the network.

    One that `remember` recorded is taken when no file changed since; one that another program left is hashed against the
    names of its blobs first.
    """
    folder = repository_directory(source.repo)
    try:
        commit = source.revision if is_commit(source.revision) else (folder / "refs" / source.revision).read_text("utf-8").strip()
        path = folder / "snapshots" / commit
        record = _read_record(source.repo, commit)
        if record is not None and all(_stat(path / name) == seen for name, seen in record["stat"].items()):
            return Snapshot(path, source.repo, commit, dict(record["sha256"]), record["license"])
        return _adopt(source, path, commit, step)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, FormatError):
        return None


def _adopt(source: HfSource, path: Path, commit: str, step: Step) -> Snapshot | None:
    chosen = choose_files(source, {entry.name: _from_blob(entry) for entry in path.iterdir()})
    names = {file.name for file in chosen}
    if _INDEX in names and not set(json.loads((path / _INDEX).read_text("utf-8"))["weight_map"].values()) <= names:
        return None
    hashes = {file.name: checked_hash(file, path / file.name, step) for file in chosen}
    snapshot = Snapshot(path, source.repo, commit, hashes, None)
    remember(snapshot)
    return snapshot


def _from_blob(path: Path) -> HubFile:
    blob = path.resolve().name
    return HubFile(path.name, path.stat().st_size, blob if len(blob) == 64 else None, blob if len(blob) == 40 else None)


def remember(snapshot: Snapshot) -> None:
    """Note that this commit is whole, so that it can be used again without a network and without hashing it."""
    path = cache_directory("hub") / _record_path(snapshot.repo, snapshot.revision).name
    partial = path.with_suffix(f".{os.getpid()}.partial")
    stat = {name: _stat(snapshot.path / name) for name in snapshot.sha256}
    try:
        record = {"sha256": snapshot.sha256, "stat": stat, "license": snapshot.license_id}
        partial.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
        partial.replace(path)
    except OSError as error:
        raise write_error(path, error) from error


def point(source: HfSource, commit: str) -> None:
    """Note which commit a branch or tag stood for, as the hub's library does, so that both find it again offline."""
    path = repository_directory(source.repo) / "refs" / source.revision
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit, "utf-8")
    except OSError as error:
        raise write_error(path, error) from error


def remove_repository(repo: str) -> int:
    """Delete every revision of a repository from the hub's cache; returns the bytes freed."""
    folder = repository_directory(repo)
    freed = remove_directory(folder) if folder.exists() else 0
    for record in (cache_root() / "hub").glob(f"{repo.replace('/', '--')}@*.json"):
        record.unlink(missing_ok=True)
    return freed


def repository_bytes(repo: str) -> int:
    """Bytes the repository takes in the hub's cache, all revisions together."""
    return directory_bytes(repository_directory(repo))


def _stat(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def _record_path(repo: str, commit: str) -> Path:
    return cache_root() / "hub" / f"{repo.replace('/', '--')}@{commit}.json"


def _read_record(repo: str, commit: str) -> dict[str, Any] | None:
    path = _record_path(repo, commit)
    if not path.exists() or path.stat().st_size > _MAX_RECORD_BYTES:
        return None
    record = json.loads(path.read_text("utf-8"))
    return record if isinstance(record, dict) else None
