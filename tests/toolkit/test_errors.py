import pytest

from toolkit.errors import FormatError, ToolkitError


@pytest.mark.parametrize("hostile", ["a\nb", "a\r\x1b[2Jb", "a\u2028b", "\u202egnp.exe", "\x00", "\ud800"])
def test_a_name_from_a_damaged_file_cannot_break_the_three_lines_or_steer_a_terminal(hostile: str) -> None:
    error = FormatError(f"{hostile} is bad", why=hostile, fix=hostile)
    assert len(str(error).splitlines()) == 3
    assert all(line.isprintable() for line in str(error).splitlines())
    str(error).encode("utf-8")


def test_printable_text_of_any_script_stays_as_it_is() -> None:
    assert str(ToolkitError("東京 é 😀 'x'", why="1 × 2", fix="ok")) == "東京 é 😀 'x'\n  why: 1 × 2\n  fix: ok"


def test_an_error_without_a_cause_has_two_lines() -> None:
    assert str(ToolkitError("what", fix="do")) == "what\n  fix: do"
