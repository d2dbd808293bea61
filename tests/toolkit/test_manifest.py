from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toolkit.small_manifest import small_fidelity, small_manifest
from toolkit.errors import FormatError
from toolkit.manifest import MAX_MANIFEST_BYTES, SEAL_FIELD, Manifest, seal_of
from toolkit.manifest_reader import load_manifest


def resealed(document: dict[str, Any]) -> str:
    """A manifest's text after an edit, with a seal that fits: only what the text says is wrong then."""
    text = json.dumps({**document, SEAL_FIELD: "0" * 64}, indent=2, ensure_ascii=False)
    return text.replace(f'"{SEAL_FIELD}": "{"0" * 64}"', f'"{SEAL_FIELD}": "{seal_of(text, "0" * 64)}"')


def edited(**changes: Any) -> str:
    return resealed({**json.loads(small_manifest().to_json()), **changes})


def test_a_manifest_reads_back_as_it_was_written() -> None:
    for manifest in (small_manifest(), small_manifest(fidelity=None, chat=False, chat_template=None, memory={})):
        assert Manifest.from_json(manifest.to_json()) == manifest
        assert Manifest.from_json(manifest.to_json().encode()) == manifest


def test_an_edit_with_a_fitting_seal_is_read() -> None:
    assert Manifest.from_json(edited(context_length=1024)).context_length == 1024


def test_figures_that_are_not_finite_are_written_as_null_and_read_as_nan() -> None:
    manifest = small_manifest(fidelity=small_fidelity(kl_mean=math.inf, perplexity=math.nan, verdict="fail"))
    fidelity = Manifest.from_json(manifest.to_json()).fidelity
    assert fidelity is not None and math.isnan(fidelity.kl_mean) and math.isnan(fidelity.perplexity)
    assert fidelity.kl_p99 == 0.1
    with pytest.raises(ValueError, match="JSON"):
        small_manifest(bits_per_weight=math.nan).to_json()


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_found(data: st.DataObject) -> None:
    content = bytearray(small_manifest().to_json().encode())
    index = data.draw(st.integers(0, len(content) - 1))
    content[index] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FormatError):
        Manifest.from_json(bytes(content))


@settings(max_examples=100, deadline=None)
@given(cut=st.integers(0, 10_000))
def test_a_truncated_manifest_is_refused(cut: int) -> None:
    content = small_manifest().to_json()
    with pytest.raises(FormatError):
        Manifest.from_json(content[: cut % len(content)])


def test_a_manifest_from_the_future_says_to_upgrade() -> None:
    with pytest.raises(FormatError) as caught:
        Manifest.from_json(edited(schema_version=2, new_field={"not": "known"}))
    assert caught.value.exit_code == 4
    assert "newer" in caught.value.what and "2" in caught.value.why and "upgrade" in caught.value.fix


@pytest.mark.parametrize("version", ["null", '"1"', "0", "-1", "1.0", "true", "[1]", "1" + 5000 * "0"], ids=lambda text: text[:8])
def test_a_version_that_is_no_positive_number_is_refused(version: str) -> None:
    with pytest.raises(FormatError):
        Manifest.from_json(f'{{"schema_version": {version}}}')


@pytest.mark.parametrize(
    "path",
    ["/etc/x", "../x", "a/../../x", "a//b", "./a", "", "a/", "C:/x", "a\\b", "manifest.json", "MANIFEST.JSON", "a\nb", "a\0b", 2000 * "x"],
)
def test_a_path_that_leaves_the_bundle_is_refused(path: str) -> None:
    with pytest.raises(FormatError, match="inside the bundle|plain|files"):
        Manifest.from_json(edited(files=[{"path": path, "bytes": 1, "sha256": "0" * 64}], entry=path))


def test_paths_that_stay_inside_are_read() -> None:
    files = [{"path": path, "bytes": 1, "sha256": "1" * 64} for path in ("a.bin", "deep/er/b.bin", "日本.bin", "...")]
    assert [record.path for record in Manifest.from_json(edited(files=files, entry="a.bin")).files][1] == "deep/er/b.bin"


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("name", "../x", "name"),
        ("name", "", "name"),
        ("target", 3, "target"),
        ("context_length", 0, "context_length"),
        ("context_length", "2048", "context_length"),
        ("context_length", True, "context_length"),
        ("context_length", 10**400, "context_length"),
        ("chat", 1, "chat"),
        ("chat", None, "chat"),
        ("chat_template", None, "chat_template"),
        ("stop_token_ids", [-1], "stop_token_ids"),
        ("stop_token_ids", "12", "stop_token_ids"),
        ("bits_per_weight", 0, "bits_per_weight"),
        ("bits_per_weight", 10**400, "bits_per_weight"),
        ("files", {}, "files"),
        ("files", [], "entry"),
        ("files", [{"path": "a", "bytes": -1, "sha256": "0" * 64}], "bytes"),
        ("files", [{"path": "a", "bytes": 2**60, "sha256": "0" * 64}], "bytes"),
        ("files", [{"path": "a", "bytes": 1, "sha256": "xyz"}], "sha256"),
        ("files", [{"path": "a", "bytes": 1}], "sha256"),
        ("files", [{"path": "a", "bytes": 1, "sha256": "0" * 64}, {"path": "A", "bytes": 1, "sha256": "0" * 64}], "twice"),
        ("entry", "other.bin", "entry"),
        ("source", {"uri": None}, "source.uri"),
        ("source", {"uri": "x", "sha256": {"a": "b"}}, "source.sha256.a"),
        ("license", {}, "id"),
        ("tools", {"a": 1}, "tools.a"),
        ("fidelity", {}, "fidelity"),
        ("fidelity", [], "fidelity"),
        ("recipe", None, "recipe"),
        ("memory", 3, "memory"),
        ("surprise", 1, "surprise"),
    ],
)
def test_a_field_that_cannot_be_right_is_refused_by_name(field: str, value: Any, named: str) -> None:
    with pytest.raises(FormatError, match=named) as caught:
        Manifest.from_json(edited(**{field: value}))
    assert caught.value.fix


@pytest.mark.parametrize("name", sorted(set(json.loads(small_manifest().to_json())) - {"memory", "fidelity", "conversion_key"}))
def test_a_missing_field_is_refused(name: str) -> None:
    document = json.loads(small_manifest().to_json())
    del document[name]
    text = json.dumps(document) if name == SEAL_FIELD else resealed({key: value for key, value in document.items() if key != SEAL_FIELD})
    with pytest.raises(FormatError, match=name if name != "chat_template" else "chat"):
        Manifest.from_json(text)


NOT_MANIFESTS = ["", "[]", "3", "null", "{", 100_000 * "[", '{"a": NaN}', '{"a": 1, "a": 1}', '{"name": "\\ud800"}', "\ud800", b"\xff\xfe"]


@pytest.mark.parametrize("text", NOT_MANIFESTS, ids=range(len(NOT_MANIFESTS)))
def test_what_is_no_manifest_at_all_is_refused(text: str | bytes) -> None:
    with pytest.raises(FormatError):
        Manifest.from_json(text)


words = st.text(st.characters(codec="utf-8"))
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
any_json = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(sorted(json.loads(small_manifest().to_json()))), any_json, max_size=3))
def test_any_json_in_any_field_is_read_or_refused_and_nothing_else(changes: dict[str, Any]) -> None:
    text = edited(**{name: value for name, value in changes.items() if name != SEAL_FIELD})
    try:
        manifest = Manifest.from_json(text)
    except FormatError:
        return
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_a_huge_manifest_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b" " * (MAX_MANIFEST_BYTES + 1))
    with pytest.raises(FormatError, match="larger than"):
        load_manifest(tmp_path)


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not a bundle"):
        load_manifest(tmp_path)
