import contextlib
import dataclasses
import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from converters.package import BUILDING, REPORT_NAME, OutputFolder, seal
from toolkit.bundle import Bundle
from toolkit.errors import FormatError, ToolkitError, UsageError
from toolkit.manifest import LicenseRecord, Manifest, SourceRecord

MANIFEST = Manifest(
    name="m-small-int8",
    target="litert",
    recipe={"name": "int8"},
    spec={},
    source=SourceRecord("small"),
    license=LicenseRecord("MIT"),
    context_length=128,
    chat=False,
    chat_template=None,
    tokenizer={"kind": "huggingface"},
    stop_token_ids=(2,),
    bits_per_weight=8.0,
    files=(),
    tools={},
    created_at="2026-01-01T00:00:00+00:00",
    entry="model.bin",
)
NAME = MANIFEST.name


def fill(folder: Path, content: bytes = b"weights") -> None:
    (folder / "model.bin").write_bytes(content)
    (folder / "sub").mkdir()
    (folder / "sub/tokenizer.json").write_text("{}")


def prepared(path: Path) -> OutputFolder:
    out = OutputFolder(path)
    out.prepare()
    return out


def publish(path: Path, content: bytes = b"weights", *, force: bool = False) -> Path:
    out = prepared(path)
    try:
        with out.building(NAME) as folder:
            fill(folder, content)
            seal(folder, MANIFEST)
            return out.publish(folder, NAME, force=force)
    finally:
        out.tidy()


def test_a_published_bundle_opens_and_nothing_else_is_left(tmp_path):
    place = publish(tmp_path / "out")
    bundle = Bundle.open(place, full_check=True)
    assert [record.path for record in bundle.manifest.files] == ["model.bin", "sub/tokenizer.json"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == [NAME]


def test_one_flipped_byte_is_seen(tmp_path):
    """Must-fail twin of the test above: the hashes are of the bytes published."""
    place = publish(tmp_path / "out")
    (place / "model.bin").write_bytes(b"weightz")
    with pytest.raises(FormatError):
        Bundle.open(place, full_check=True)


def test_an_existing_bundle_is_kept_without_force_and_replaced_with_it(tmp_path):
    place = publish(tmp_path / "out", b"one")
    with pytest.raises(UsageError, match="--force"):
        publish(tmp_path / "out", b"two")
    assert (place / "model.bin").read_bytes() == b"one"
    publish(tmp_path / "out", b"two", force=True)
    assert Bundle.open(place, full_check=True).path == place and (place / "model.bin").read_bytes() == b"two"
    assert [path.name for path in (tmp_path / "out").iterdir()] == [NAME]


@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_bundle_is_never_replaced(tmp_path, force):
    mine = tmp_path / "out" / NAME
    mine.mkdir(parents=True)
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="in the way"):
        publish(tmp_path / "out", force=force)
    assert (mine / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("force", [False, True])
def test_a_link_of_that_name_is_never_followed(tmp_path, force):
    (tmp_path / "out").mkdir()
    elsewhere = publish(tmp_path / "elsewhere", b"keep")
    (tmp_path / "out" / NAME).symlink_to(elsewhere)
    with pytest.raises(UsageError, match="in the way"):
        publish(tmp_path / "out", b"two", force=force)
    assert (elsewhere / "model.bin").read_bytes() == b"keep"


def test_an_empty_folder_of_that_name_is_taken(tmp_path):
    (tmp_path / "out" / NAME).mkdir(parents=True)
    Bundle.open(publish(tmp_path / "out"), full_check=True)


def test_a_failure_while_building_leaves_nothing(tmp_path):
    out = prepared(tmp_path / "deep/out")
    with pytest.raises(RuntimeError), out.building(NAME) as folder:
        fill(folder)
        raise RuntimeError
    out.tidy()
    assert list(tmp_path.iterdir()) == []


def test_after_tidying_nothing_is_made_again_by_a_thread_that_is_late(tmp_path):
    out = OutputFolder(tmp_path / "out")
    out.prepare()
    out.tidy()
    with pytest.raises(InterruptedError), out.building("late"):
        pass
    assert not (tmp_path / "out").exists()


def test_tidy_keeps_an_empty_folder_that_was_there_before(tmp_path):
    (tmp_path / "out").mkdir()
    prepared(tmp_path / "out").tidy()
    assert list((tmp_path / "out").iterdir()) == []


def test_a_refused_bundle_stays_with_its_report_and_replaces_an_earlier_one(tmp_path):
    for reason in ("first", "second"):
        out = prepared(tmp_path / "out")
        with out.building(NAME) as folder:
            fill(folder)
            seal(folder, MANIFEST, report={"why": reason})
            place = out.refuse(folder, NAME)
        out.tidy()
    assert place == tmp_path / "out/.refused" / NAME
    assert json.loads((place / REPORT_NAME).read_text()) == {"why": "second"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".refused"]
    assert not (tmp_path / "out" / NAME).exists()


def test_a_missing_entry_or_a_link_is_not_packaged(tmp_path):
    with pytest.raises(ToolkitError, match="entry file"):
        seal(tmp_path, MANIFEST)
    (tmp_path / "model.bin").symlink_to("/etc/hostname")
    with pytest.raises(ToolkitError, match="cannot be packaged"):
        seal(tmp_path, MANIFEST)
    assert not (tmp_path / "manifest.json").exists()


def test_a_manifest_no_reader_accepts_is_not_written(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(FormatError):
        seal(tmp_path, dataclasses.replace(MANIFEST, chat=True))
    assert not (tmp_path / "manifest.json").exists()


def leave_behind(out: Path, suffix: str) -> Path:
    """What a process killed while building leaves."""
    folder = out / BUILDING / f"{NAME}.{suffix}"
    folder.mkdir(parents=True)
    fill(folder)
    return folder


def test_leftovers_of_dead_processes_are_swept(tmp_path):
    leave_behind(tmp_path / "out", "99999999")
    leave_behind(tmp_path / "out", "replaced")
    prepared(tmp_path / "out").tidy()
    assert list((tmp_path / "out").iterdir()) == []


def test_the_folder_of_a_live_process_is_not(tmp_path):
    first, second = prepared(tmp_path / "out"), None
    with first.building(NAME) as folder:
        fill(folder)
        second = prepared(tmp_path / "out")
        assert (folder / "model.bin").exists()
        seal(folder, MANIFEST)
        first.publish(folder, NAME, force=False)
    second.tidy()
    Bundle.open(tmp_path / "out" / NAME, full_check=True)


def test_a_bundle_moved_aside_by_a_killed_replacement_is_put_back(tmp_path):
    place = publish(tmp_path / "out", b"old")
    (tmp_path / "out" / BUILDING).mkdir()
    os.rename(place, tmp_path / "out" / BUILDING / f"{NAME}.old")
    prepared(tmp_path / "out").tidy()
    assert Bundle.open(place, full_check=True) and (place / "model.bin").read_bytes() == b"old"


def test_a_failed_replacement_puts_the_old_bundle_back(tmp_path, monkeypatch):
    place = publish(tmp_path / "out", b"old")
    real = os.rename

    def rename(source, target):
        if Path(target) == place and Path(source).name != f"{NAME}.old":
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="Input/output"):
        publish(tmp_path / "out", b"new", force=True)
    monkeypatch.undo()
    assert (place / "model.bin").read_bytes() == b"old"
    assert [path.name for path in (tmp_path / "out").iterdir()] == [NAME]


def test_a_file_cannot_hold_bundles(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        prepared(tmp_path / "out")


@contextlib.contextmanager
def small_disk(folder: Path, size: str, *options: str) -> Iterator[Path]:
    """A tmpfs of a given size; skips where mounting is not permitted."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}", *options]), "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_fills_up_at_the_manifest_leaves_nothing(tmp_path):
    with small_disk(tmp_path / "disk", "1m") as disk:
        out = prepared(disk / "out")
        with pytest.raises(OSError) as caught, out.building(NAME) as folder:
            fill(folder)
            with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(4096))
            seal(folder, MANIFEST)
        assert caught.value.errno == errno.ENOSPC
        out.tidy()
        assert [path.name for path in disk.iterdir()] == ["filler"]


def test_a_disk_with_room_publishes(tmp_path):
    """Must-fail twin: it is the full disk that is refused, not the tmpfs."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        Bundle.open(publish(disk / "out"), full_check=True)


def test_a_read_only_folder_is_refused_before_any_work(tmp_path):
    with small_disk(tmp_path / "disk", "1m", "ro") as disk:
        with pytest.raises(OSError) as caught:
            prepared(disk / "out")
        assert caught.value.errno == errno.EROFS
