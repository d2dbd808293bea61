"""Which bundles may be compared; tests/converters/test_convert_tiny.py compares real ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from converters import compare
from tests.toolkit.small_manifest import small_bundle
from toolkit.cli import main
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


@pytest.mark.parametrize("is_first", [True, False])
def test_a_bundle_that_answers_to_sound_is_refused_before_its_source_is_fetched(
    is_first: bool, own_folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("toolkit.cli.verify.call_plugin", lambda name, *paths: getattr(compare, name)(*paths))
    text, speech = small_bundle(own_folders / "text"), small_bundle(own_folders / "speech", spec={"model_type": "whisper"})
    first, second = (speech, text) if is_first else (text, speech)
    assert main(["verify", str(first), "--against", str(second)]) == 2
    what, why, fix = capsys.readouterr().err.splitlines()[-3:]
    assert "cannot be compared" in what and "it answers to sound" in why and f"toolkit verify {speech} --fidelity" in fix
