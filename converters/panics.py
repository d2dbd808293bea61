"""Panics of the tokenizers library, made errors of the file it was given.

A panic is no Exception: uncaught, it would pass every `except Exception` on its way and end in a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.errors import FormatError


def is_panic(error: BaseException) -> bool:
    """Whether an error is a Rust panic. Its class cannot be imported, so it is known by name."""
    return type(error).__name__ == "PanicException"


@contextmanager
def panics_explained() -> Iterator[None]:
    """Turn a panic into the error of tokenizer.json: a pattern may be too costly to match. Also a decorator.

    Raises:
        FormatError: The library panicked.
    """
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        why = f"the tokenizers library gives up on it: {' '.join(str(error).split())[:200]}"
        raise FormatError("tokenizer.json cannot be used", why=why, fix="download the checkpoint again, or convert its original") from error
