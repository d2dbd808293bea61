"""Which bundles may be compared; tests/converters/test_convert_tiny.py compares real ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from converters import compare
from toolkit.errors import UsageError


def bundle(name: str, sha256: str) -> Any:
    return SimpleNamespace(name=name, manifest=SimpleNamespace(source=SimpleNamespace(sha256=sha256)))


def checkpoint(tokenizer_json: bytes) -> Any:
    return SimpleNamespace(tokenizer=SimpleNamespace(tokenizer_json=tokenizer_json))


def test_bundles_of_one_checkpoint_need_no_second_look() -> None:
    compare._require_same_tokens(bundle("a", "1"), bundle("b", "1"), checkpoint(b"{}"))


def test_bundles_of_two_checkpoints_with_one_tokenizer_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_checkpoint_of", lambda bundle: checkpoint(b"{}"))
    compare._require_same_tokens(bundle("a", "1"), bundle("b", "2"), checkpoint(b"{}"))


def test_bundles_whose_tokens_mean_different_things_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_checkpoint_of", lambda bundle: checkpoint(b"[]"))
    with pytest.raises(UsageError, match="a and b cannot be compared"):
        compare._require_same_tokens(bundle("a", "1"), bundle("b", "2"), checkpoint(b"{}"))
