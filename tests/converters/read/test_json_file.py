from pathlib import Path

import pytest

from converters.read.json_file import read_json_object
from toolkit.errors import FormatError

DAMAGE = {
    "empty": (b"", "Expecting value"),
    "cut": (b'{"a": 1', "Expecting"),
    "a list": (b"[]", "does not hold an object"),
    "not UTF-8": (b'{"\xff": 1}', "utf-8"),
    "a key twice": (b'{"a": {"b": 1, "b": 2}}', "'b' appears twice"),
    "deep": (b'{"a":' * 200_000, "."),
    "too large": (b'{"a": "' + b"x" * 2000 + b'"}', "are allowed"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_json_that_cannot_be_used_is_named(case: str, tmp_path: Path) -> None:
    content, reason = DAMAGE[case]
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(FormatError, match=reason) as error:
        read_json_object(tmp_path / "config.json", max_bytes=1024 if case == "too large" else 2**21)
    assert str(error.value).startswith("config.json ")


def test_a_missing_file_says_where_it_must_be(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=rf"the folder {tmp_path} must hold it"):
        read_json_object(tmp_path / "config.json", max_bytes=1024)


def test_sound_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": [1, {"b": null}]}')
    assert read_json_object(tmp_path / "config.json", max_bytes=1024) == {"a": [1, {"b": None}]}
