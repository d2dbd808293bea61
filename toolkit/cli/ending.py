"""How a command ends without a result: an error in three lines, one that nobody foresaw, a stdout that takes nothing."""

from __future__ import annotations

import errno
import os
import sys

from toolkit.errors import ToolkitError, UsageError

_STDOUT_FAILURES = (errno.ENOSPC, errno.EIO, errno.EBADF)


def report_error(error: ToolkitError, *, as_json: bool, is_debug: bool, text: str | None = None) -> int:
    """Print an error; returns its exit code.

    Args:
        error: Also the object on stdout with `as_json`.
        as_json: Whether `--json` was given.
        is_debug: Whether `--debug` was given: its traceback instead of three lines.
        text: The three lines, where they are not in English.
    """
    if as_json and sys.stdout is not None:
        from toolkit.cli.output import print_json

        print_json(error.as_json())
    if is_debug:
        import traceback

        traceback.print_exception(error)
    else:
        print(text or error, file=sys.stderr)
    return error.exit_code


def unforeseen(error: Exception, *, program: str, fix: str) -> ToolkitError:
    """The three lines for what nobody foresaw; a path the system cannot take is the user's."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return UsageError("a path of this command is too long", why=error.strerror or "", fix="give a shorter one")
    found = ToolkitError(f"{program} failed in a way it does not know", why=f"{type(error).__name__}: {error}", fix=fix)
    found.__cause__ = error
    return found


def end_without_stdout(error: Exception) -> int | None:
    """The exit code if it was stdout that failed, which is said unless its reader has left; None for every other error.

    Writing to stdout names no file, unlike opening one.
    """
    if not isinstance(error, BrokenPipeError):
        if not isinstance(error, OSError) or error.filename is not None or error.errno not in _STDOUT_FAILURES:
            return None
        fix = "send it to a file or a program that can take it"
        print(ToolkitError("stdout cannot be written", why=error.strerror or str(error), fix=fix), file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that nothing is left to flush when Python ends
    return ToolkitError.exit_code
