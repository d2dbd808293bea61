import errno
from pathlib import Path

import pytest

from converters.faults import explain, explained
from toolkit.errors import BackendUnavailableError, BudgetError, FormatError, ToolkitError, UsageError


@pytest.mark.parametrize(
    ("error", "kind", "exit_code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), BudgetError, 3),
        (OSError(errno.EDQUOT, "quota"), BudgetError, 3),
        (RuntimeError("io error: No space left on device (os error 28)"), BudgetError, 3),
        (ToolkitError("could not lower", why="OSError: [Errno 28] No space left on device", fix="read the log"), BudgetError, 3),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), UsageError, 2),
        (OSError(errno.EROFS, "Read-only file system", "/x"), UsageError, 2),
        (MemoryError(), BudgetError, 3),
        (ModuleNotFoundError("no", name="torch"), BackendUnavailableError, 5),
        (KeyError("k"), ToolkitError, 1),
        (OSError(errno.EIO, "Input/output error"), ToolkitError, 1),
    ],
)
def test_every_failure_has_a_cause_a_fix_and_its_code(tmp_path, error, kind, exit_code):
    failure = explain(error, "write it", tmp_path / "not/there")
    assert type(failure) is kind and failure.exit_code == exit_code
    assert "write it" in failure.what and failure.why and failure.fix
    assert len(str(failure).splitlines()) == 3


def test_a_toolkit_error_stays_itself(tmp_path):
    error = FormatError("x", why="y", fix="z")
    assert explain(error, "do", tmp_path) is error


def test_the_cause_is_kept_for_debugging(tmp_path):
    with pytest.raises(ToolkitError) as caught, explained("do it", tmp_path):
        raise ValueError("deep\nand long")
    assert isinstance(caught.value.__cause__, ValueError)
    assert "ValueError: deep and long" in caught.value.why


def test_an_interrupt_passes(tmp_path):
    with pytest.raises(KeyboardInterrupt), explained("do it", Path(tmp_path)):
        raise KeyboardInterrupt
