import hashlib
import os
from pathlib import Path

import pytest

from converters.read import hashes
from converters.read.hashes import check_stated_hashes, content_hash, hash_files
from toolkit.cache import cache_root
from toolkit.errors import FormatError
from toolkit.manifest import SourceRecord

CONTENT = b"weights" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(CONTENT)
    return path


def test_a_file_is_hashed_once_and_again_when_it_changed(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(hashes, "sha256_file", lambda path: calls.append(path) or hashlib.sha256(path.read_bytes()).hexdigest())
    assert hash_files({"w": weights}) == hash_files({"w": weights}) == {"w": SHA256}
    assert len(calls) == 1
    weights.write_bytes(CONTENT[:-1] + b"x")
    os.utime(weights, ns=(0, 0))
    assert hash_files({"w": weights})["w"] != SHA256
    assert len(calls) == 2


@pytest.mark.parametrize("memory", [b"", b"[]", b'{"x": 1}', b"[" * 100_000, b"\xff"])
def test_a_damaged_memory_is_no_memory(memory: bytes, weights: Path) -> None:
    (cache_root()).mkdir(parents=True)
    (cache_root() / "hashes.json").write_bytes(memory)
    assert hash_files({"w": weights}) == {"w": SHA256}


def test_a_cache_that_cannot_be_written_costs_only_time(weights: Path) -> None:
    cache_root().parent.mkdir(parents=True, exist_ok=True)
    cache_root().write_text("a file where the folder should be")
    assert hash_files({"w": weights}) == {"w": SHA256}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="shard-2 cannot be read"):
        hash_files({"shard-2": tmp_path / "absent"})


def test_the_content_hash_depends_on_names_and_hashes_but_not_on_order() -> None:
    assert content_hash({"a": "1", "b": "2"}) == content_hash({"b": "2", "a": "1"})
    assert len({content_hash({"a": "1", "b": "2"}), content_hash({"a": "2", "b": "1"}), content_hash({"a": "1"})}) == 3


def check(weights: Path, source: SourceRecord | None = None, path: Path | None = None) -> None:
    path = path or weights
    check_stated_hashes(path.parent, {weights.name: path}, hash_files({weights.name: path}), source)


OTHER = "0" * 64


@pytest.mark.parametrize("stated", [SHA256, OTHER])
@pytest.mark.parametrize("where", ["source", "SHA256SUMS", "binary mark", "own file", "bare hash", "blob"])
def test_a_hash_the_source_carries_is_checked(where: str, stated: str, weights: Path, tmp_path: Path) -> None:
    source, path = None, weights
    if where == "source":
        source = SourceRecord("pypi:x==1", sha256={weights.name: stated})
    elif where in ("SHA256SUMS", "binary mark"):
        mark = "*" if where == "binary mark" else ""
        (tmp_path / "SHA256SUMS").write_text(f"{OTHER}  other.bin\n{stated.upper()}  {mark}{weights.name}\n")
    elif where in ("own file", "bare hash"):
        (tmp_path / f"{weights.name}.sha256").write_text(stated if where == "bare hash" else f"{stated}  {weights.name}\n")
    else:
        blob = tmp_path / "blobs" / stated
        blob.parent.mkdir()
        weights.rename(blob)
        weights.symlink_to(blob)
    if stated == SHA256:
        check(weights, source, path)
    else:
        with pytest.raises(FormatError, match=rf"is not the file that was published\n  why: its SHA-256 is {SHA256[:16]}"):
            check(weights, source, path)


def test_hashes_of_other_files_and_blobs_named_otherwise_are_left_alone(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "SHA256SUMS").write_text(f"{OTHER}  other.bin\nnonsense\n\n")
    blob = tmp_path / ("a" * 40)  # a git hash, as the hub names small files
    weights.rename(blob)
    weights.symlink_to(blob)
    check(weights)
