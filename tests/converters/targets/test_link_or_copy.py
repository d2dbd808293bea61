from __future__ import annotations

import os
from pathlib import Path

import pytest

from converters.targets.link_or_copy import link_or_copy


def test_a_file_gets_a_second_name_instead_of_a_second_copy(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").samefile(tmp_path / "b")


def test_where_a_disk_ends_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another disk")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_bytes(b"weights")
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"weights" and not (tmp_path / "a").samefile(tmp_path / "b")
