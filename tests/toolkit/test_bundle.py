from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import toolkit.bundle
from tests.toolkit.small_manifest import CONTENTS, small_bundle
from toolkit.bundle import Bundle
from toolkit.cache import cache_root
from toolkit.errors import FormatError, UsageError


@pytest.fixture
def bundle_path(tmp_path: Path, own_folders: Path) -> Path:
    """A bundle whose files are old enough to be remembered."""
    folder = small_bundle(tmp_path / "small-litert-int8")
    for name in CONTENTS:
        os.utime(folder / name, ns=(1, 1))
    return folder


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are hashed, in order. Files count as settled at once."""
    names: list[str] = []
    real = toolkit.bundle.sha256_file

    def counting(path: Path, advance: object = None) -> str:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(toolkit.bundle, "sha256_file", counting)
    monkeypatch.setattr(toolkit.bundle, "_SETTLED_NS", -(2**62))
    return names


def test_a_bundle_opens_with_its_manifest(bundle_path: Path) -> None:
    bundle = Bundle.open(bundle_path)
    assert bundle.manifest.name == "small-litert-int8"
    assert bundle.entry_path == bundle_path / "model.bin"
    assert bundle.bytes == sum(map(len, CONTENTS.values()))


@pytest.mark.parametrize("name", [*CONTENTS, "manifest.json"])
@pytest.mark.parametrize("where", [0.0, 0.3, 0.999])
def test_one_flipped_byte_in_any_file_is_refused_by_name(bundle_path: Path, name: str, where: float) -> None:
    Bundle.open(bundle_path)
    data = bytearray((bundle_path / name).read_bytes())
    data[int(where * len(data))] ^= 1
    (bundle_path / name).write_bytes(data)
    with pytest.raises(FormatError, match=Path(name).name) as caught:
        Bundle.open(bundle_path)
    assert caught.value.exit_code == 4 and caught.value.why


def test_unchecked_a_bundle_is_its_manifest_and_can_be_checked_later(bundle_path: Path, hashed: list[str]) -> None:
    bundle = Bundle.unchecked(bundle_path)
    assert bundle.manifest.name == "small-litert-int8" and hashed == []
    bundle.check()
    assert sorted(hashed) == sorted(Path(name).name for name in CONTENTS)
    (bundle_path / "model.bin").write_bytes(b"x")
    with pytest.raises(FormatError, match="model.bin"):
        bundle.check()


@pytest.mark.parametrize("opening", [Bundle.open, Bundle.unchecked])
def test_an_empty_name_is_not_the_current_folder(opening: Any, bundle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bundle_path)
    with pytest.raises(UsageError, match="no bundle is named"):
        opening("")


def test_files_are_hashed_once(bundle_path: Path, hashed: list[str]) -> None:
    Bundle.open(bundle_path)
    assert sorted(hashed) == ["model.bin", "vocab.txt"]
    Bundle.open(bundle_path)
    assert len(hashed) == 2


def test_a_full_check_hashes_again(bundle_path: Path, hashed: list[str]) -> None:
    Bundle.open(bundle_path)
    Bundle.open(bundle_path, full_check=True)
    assert len(hashed) == 4


def test_a_flip_that_keeps_size_and_mtime_is_found(bundle_path: Path) -> None:
    time.sleep(0.15)
    Bundle.open(bundle_path)
    path = bundle_path / "model.bin"
    status = path.stat()
    with path.open("r+b") as stream:
        stream.write(b"W")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(FormatError, match=r"model\.bin"):
        Bundle.open(bundle_path)


def touch(path: Path) -> None:
    os.utime(path, ns=(5, 5))


def replace(path: Path) -> None:
    shutil.copyfile(path, path.with_suffix(".new"))
    os.utime(path.with_suffix(".new"), ns=(1, 1))
    os.replace(path.with_suffix(".new"), path)


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes())


@pytest.mark.parametrize("change", [touch, replace, rewrite])
def test_a_file_that_is_not_the_one_remembered_is_hashed_again(bundle_path: Path, hashed: list[str], change: object) -> None:
    Bundle.open(bundle_path)
    hashed.clear()
    change(bundle_path / "model.bin")  # type: ignore[operator]
    Bundle.open(bundle_path)
    assert hashed == ["model.bin"]


def test_a_file_that_changed_a_moment_ago_is_not_remembered(bundle_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: list[str]) -> None:
    monkeypatch.setattr(toolkit.bundle, "_SETTLED_NS", 2**62)
    Bundle.open(bundle_path)
    Bundle.open(bundle_path)
    assert len(hashed) == 4


def test_a_copy_of_a_bundle_is_hashed_by_itself(bundle_path: Path, hashed: list[str], tmp_path: Path) -> None:
    Bundle.open(bundle_path)
    shutil.copytree(bundle_path, tmp_path / "copy")
    Bundle.open(tmp_path / "copy")
    assert len(hashed) == 4
    assert Bundle.open(tmp_path / "copy").content_hash == Bundle.open(bundle_path).content_hash


@pytest.mark.parametrize("note", [b"", b"[]", b"\xff", b'{"model.bin": 3}', b"[" * 10_000])
def test_a_damaged_memory_only_costs_a_second_look(bundle_path: Path, hashed: list[str], note: bytes) -> None:
    Bundle.open(bundle_path)
    [remembered] = (cache_root() / "checked").iterdir()
    remembered.write_bytes(note)
    Bundle.open(bundle_path)
    assert len(hashed) == 4


def test_a_cache_that_cannot_be_written_is_no_obstacle(bundle_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ONDEVICE_TOOLKIT_CACHE", str(tmp_path / "file"))
    assert Bundle.open(bundle_path).manifest.name == "small-litert-int8"


def test_a_missing_truncated_or_strange_file_is_refused_by_name(bundle_path: Path) -> None:
    path = bundle_path / "model.bin"
    path.write_bytes(b"short")
    with pytest.raises(FormatError, match=r"model\.bin") as caught:
        Bundle.open(bundle_path)
    assert "5 bytes" in caught.value.why and "7000" in caught.value.why
    path.unlink()
    with pytest.raises(FormatError, match="missing"):
        Bundle.open(bundle_path)
    path.mkdir()
    with pytest.raises(FormatError, match="regular"):
        Bundle.open(bundle_path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(FormatError, match="regular"):
        Bundle.open(bundle_path)


def test_a_path_that_is_no_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.litertlm").write_text("")
    with pytest.raises(FormatError, match="it is a file"):
        Bundle.open(tmp_path / "model.litertlm")
    with pytest.raises(FormatError, match="no such folder"):
        Bundle.open(tmp_path / "nothing")


def test_the_content_hash_follows_the_native_files_alone(tmp_path: Path, own_folders: Path) -> None:
    one = Bundle.open(small_bundle(tmp_path / "one"))
    renamed = Bundle.open(small_bundle(tmp_path / "two", name="other", context_length=7))
    fewer = Bundle.open(small_bundle(tmp_path / "three", files=one.manifest.files[:1]))
    assert one.content_hash == renamed.content_hash
    assert one.content_hash != fewer.content_hash


def test_no_path_at_all_is_no_current_directory(bundle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bundle_path)
    assert Bundle.open(".").manifest == Bundle.open(bundle_path).manifest
    with pytest.raises(UsageError, match="no bundle is named"):
        Bundle.open("")
