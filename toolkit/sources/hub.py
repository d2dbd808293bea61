"""`hf:` sources: one repository of the Hugging Face hub at one commit, fetched into the hub's own cache (HF_HOME)."""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType
from typing import Any

from toolkit.cache import check_free_disk
from toolkit.catalog import HfSource
from toolkit.errors import BackendUnavailableError, FormatError
from toolkit.progress import Progress, Step
from toolkit.sources.hub_cache import (
    HubFile,
    Snapshot,
    checked_hash,
    choose_files,
    hub_cache,
    is_commit,
    local_snapshot,
    point,
    remember,
    repository_directory,
)
from toolkit.sources.hub_failures import is_network_failure, translated

MAX_TRIES = 3
_METADATA_TIMEOUT_S = 15.0


def fetch_repository(source: HfSource, *, progress: Progress) -> Snapshot:
    """Bring the files a conversion needs from the hub: configuration, tokenizer, template and safetensors weights.

    A branch or tag is resolved to its commit first. Files already there are not fetched again, a file cut short goes on
    where it was, and every file is hashed against what the hub states. With no network, a whole earlier fetch is used.

    Raises:
        SourceUnavailableError: No network, no such repository or revision, or a gate that was not passed.
        FormatError: The repository holds no safetensors model, or a file's hash differs; that file is removed.
        BudgetError: The disk has too little space.
        BackendUnavailableError: huggingface_hub is not installed.
    """
    if is_commit(source.revision) and (snapshot := _local(source, progress)) is not None:
        return snapshot
    hub = _hub_library()
    try:
        info = hub.HfApi().model_info(source.repo, revision=source.revision, files_metadata=True, timeout=_METADATA_TIMEOUT_S)
    except Exception as error:
        if is_network_failure(error, hub) and (snapshot := _local(source, progress)) is not None:
            progress.note(f"{source.uri}: no network, using commit {snapshot.revision[:12]} from this disk")
            return snapshot
        raise translated(error, source, hub) from error
    files = choose_files(source, {sibling.rfilename: _hub_file(sibling) for sibling in info.siblings or ()})
    snapshot = _bring(hub, source, info.sha, files, _license_id(info), progress)
    remember(snapshot)
    if not is_commit(source.revision):
        point(source, info.sha)
    return snapshot


def _local(source: HfSource, progress: Progress) -> Snapshot | None:
    if not repository_directory(source.repo).exists():
        return None
    with progress.stage(f"Looking for {source.uri} on this disk") as step:
        return local_snapshot(source, step)


def _hub_library() -> ModuleType:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ModuleNotFoundError as error:
        raise BackendUnavailableError(
            "hf: sources need huggingface_hub", why="it is not installed", fix="pip install 'ondevice-toolkit[convert]'"
        ) from error
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings become our errors
    return huggingface_hub


def _hub_file(sibling: Any) -> HubFile:
    return HubFile(sibling.rfilename, sibling.size or 0, getattr(sibling.lfs, "sha256", None), sibling.blob_id)


def _license_id(info: Any) -> str | None:
    """What the model card's header states; 'other' is refined by the card's `license_name`."""
    card = info.card_data
    stated = getattr(card, "license", None)
    if stated == "other":
        stated = getattr(card, "license_name", None) or stated
    return stated if isinstance(stated, str) else None


def _bring(
    hub: ModuleType, source: HfSource, commit: str, files: tuple[HubFile, ...], license_id: str | None, progress: Progress
) -> Snapshot:
    folder = repository_directory(source.repo) / "snapshots" / commit
    total = sum(file.bytes for file in files)
    missing = sum(file.bytes for file in files if not (folder / file.name).exists())
    check_free_disk(hub_cache(), missing, f"fetching {source.uri}")
    with progress.stage(f"Fetching {source.uri}", missing) as step:
        paths = {file: _download(hub, source, commit, file, step) for file in files}
    with progress.stage(f"Checking {source.uri}", total) as step:
        hashes = {file.name: _checked(hub, source, commit, file, path, step) for file, path in paths.items()}
    return Snapshot(paths[files[0]].parent, source.repo, commit, hashes, license_id)


def _checked(hub: ModuleType, source: HfSource, commit: str, file: HubFile, path: Path, step: Step) -> str:
    """The file's SHA-256; a copy that was damaged on this disk since it came is brought once more."""
    try:
        return checked_hash(file, path, step)
    except FormatError:
        return checked_hash(file, _download(hub, source, commit, file, step), step)


def _download(hub: ModuleType, source: HfSource, commit: str, file: HubFile, step: Step) -> Path:
    """One file, tried three times while the network is what fails; the hub's library resumes what is on the disk."""
    n_tries = 1
    while True:
        try:
            return Path(hub.hf_hub_download(source.repo, file.name, revision=commit, tqdm_class=_forwarding_bar(step)))
        except Exception as error:
            if n_tries == MAX_TRIES or not is_network_failure(error, hub):
                raise translated(error, source, hub, file.name) from error
            n_tries += 1


def _forwarding_bar(step: Step) -> type:
    """A tqdm class, as the hub's library wants one, that draws nothing and reports to `step`."""
    from huggingface_hub.utils.tqdm import tqdm

    class ForwardingBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            step.advance(n or 0)

    return ForwardingBar
