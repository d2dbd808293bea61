from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.manifest import FileRecord
from toolkit.sources import store

pytestmark = pytest.mark.usefixtures("own_folders")


def put(contents: dict[str, bytes], *, uri: str = "pypi:tiny==1", name: str = "tiny") -> store.Entry:
    staging = store.new_staging("label")
    for file_name, content in contents.items():
        store.staged_file(staging, file_name).write_bytes(content)
    records = tuple(FileRecord(file_name, len(content), hashlib.sha256(content).hexdigest()) for file_name, content in contents.items())
    return store.publish(staging, uri, name, records)


def test_an_entry_is_found_by_its_content_and_by_its_uri() -> None:
    entry = put({"model.gguf": b"weights"})
    assert store.find(key=entry.key) == store.find(uri="pypi:tiny==1") == entry
    assert store.find(key="0" * 64) is None
    assert store.find(uri="pypi:tiny==2") is None


def test_one_file_is_its_path_and_several_are_their_folder() -> None:
    assert put({"model.gguf": b"weights"}).path.read_bytes() == b"weights"
    several = put({"model.bin": b"weights", "config.json": b"{}"})
    assert sorted(path.name for path in several.path.iterdir()) == ["config.json", "model.bin"]
    assert several.bytes == 9


@given(st.dictionaries(st.text("ab.", min_size=1, max_size=3), st.text("01", min_size=1, max_size=2), max_size=4))
def test_the_key_depends_on_names_and_hashes_and_not_on_their_order(hashes: dict[str, str]) -> None:
    key = store.content_key(hashes)
    assert store.content_key(dict(reversed(hashes.items()))) == key
    for name in hashes:
        assert store.content_key({**hashes, name: hashes[name] + "0"}) != key
        assert store.content_key({(n + "x" if n == name else n): h for n, h in hashes.items()}) != key


def test_a_file_that_was_only_touched_is_still_itself_and_one_that_changed_is_not() -> None:
    entry = put({"model.gguf": b"weights"})
    os.utime(entry.path, (1, 1))
    assert store.find(key=entry.key) == entry
    entry.path.write_bytes(b"WEIGHTS")
    assert store.find(key=entry.key) is None


@pytest.mark.parametrize("content", [b"weight", b"weights!", b""])
def test_a_file_of_another_size_makes_its_entry_absent(content: bytes) -> None:
    entry = put({"model.gguf": b"weights", "config.json": b"{}"})
    (entry.path / "model.gguf").write_bytes(content)
    assert store.find(key=entry.key) is None


def test_a_missing_file_makes_its_entry_absent() -> None:
    entry = put({"model.gguf": b"weights"})
    entry.path.unlink()
    assert store.find(key=entry.key) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"files": [{}]}', b'{"files": []}', b"\xff"])
def test_a_damaged_record_hides_its_entry_and_nothing_else(content: bytes) -> None:
    damaged, sound = put({"a.gguf": b"a"}, name="damaged"), put({"b.gguf": b"b"}, name="sound")
    (damaged.directory / "entry.json").write_bytes(content)
    assert store.entries() == [sound]


def test_publishing_again_mends_a_damaged_entry() -> None:
    entry = put({"model.gguf": b"weights"})
    entry.path.write_bytes(b"WEIGHTS")
    again = put({"model.gguf": b"weights"})
    assert (again.directory, again.path.read_bytes()) == (entry.directory, b"weights")
    assert len(store.entries()) == 1


def test_what_a_killed_run_left_in_staging_is_no_entry_and_is_cleared() -> None:
    staging = store.new_staging("label")
    store.staged_file(staging, "half.gguf").write_bytes(b"half")
    assert store.entries() == []
    assert store.new_staging("label") == staging
    assert not store.staged_file(staging, "half.gguf").exists()


def test_removing_an_entry_frees_its_bytes() -> None:
    entry = put({"model.gguf": b"x" * 1000})
    size = store.stored_bytes(entry)
    assert size > 1000
    assert store.remove(entry) == size
    assert store.entries() == []


def test_the_record_names_no_folder_of_this_machine() -> None:
    entry = put({"model.gguf": b"weights"})
    assert str(Path(entry.directory).parent) not in json.dumps(json.loads((entry.directory / "entry.json").read_text()))
