"""Silence for the native library's log on stderr; it exports no way to be told to be quiet."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_native() -> Iterator[None]:
    """Drop what the library logs while it opens and closes: people read our lines, not its. With `--debug` it may speak."""
    if sys.stderr is None or logging.getLogger().isEnabledFor(logging.DEBUG):
        yield
        return
    sys.stderr.flush()
    kept, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(sink)
