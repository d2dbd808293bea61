import struct
from pathlib import Path

import pytest

from converters.read.byte_cursor import ByteCursor, mapped
from toolkit.errors import FormatError


def test_bytes_are_taken_in_order_and_never_past_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(struct.pack("<IH", 7, 9) + b"xyz")
    with mapped(path, "test file", least_bytes=9) as data:
        cursor = ByteCursor(path, "test file", data)
        assert (cursor.number("I", 4), cursor.number("H", 2), cursor.take(2)) == (7, 9, b"xy")
        with pytest.raises(FormatError, match=r"not a sound test file\n  why: 2 more bytes run past the end of the file \(at byte 8\)"):
            cursor.take(2)
        assert cursor.take(1) == b"z"


def test_a_header_may_not_reach_further_than_it_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(100))
    with mapped(path, "test file", least_bytes=1) as data:
        cursor = ByteCursor(path, "test file", data, most_bytes=10)
        cursor.skip(10)
        with pytest.raises(FormatError, match="run past the 10 bytes a header may take"):
            cursor.skip(2**63)


@pytest.mark.parametrize("content", [b"", b"1234"])
def test_a_file_too_short_for_any_header_is_refused_with_both_sizes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    with (
        pytest.raises(FormatError, match=f"it has {len(content)} bytes, a header alone takes 5"),
        mapped(tmp_path / "a.bin", "test file", least_bytes=5),
    ):
        pass


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(FormatError, match=r"gone.bin cannot be read\n  why: No such file"),
        mapped(tmp_path / "gone.bin", "x", least_bytes=1),
    ):
        pass
