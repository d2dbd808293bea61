"""Versions of installed distributions."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from toolkit.installed import UNKNOWN, installed_version


@pytest.fixture(autouse=True)
def asked_anew() -> None:
    installed_version.cache_clear()


@pytest.mark.parametrize("name", ["pytest", "hypothesis", "ondevice-toolkit", "PyTest"])
def test_it_is_what_importlib_says(name: str) -> None:
    assert installed_version(name) == metadata.version(name)


def test_what_is_not_installed_is_unknown() -> None:
    assert installed_version("no-such-distribution-here") == UNKNOWN


@pytest.mark.parametrize(
    "folder", ["Some_Engine-1.2.3.post1.dist-info", "some.engine-1.2.3.post1.dist-info", "some_engine-1.2.3.post1.dist-info"]
)
def test_a_name_is_found_however_it_is_spelt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / "some_engine_more-9.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "gone"), str(tmp_path)])
    assert installed_version("some-engine") == "1.2.3.post1"


def test_what_another_installer_left_is_asked_of_importlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "old_engine.egg-info").mkdir()
    (tmp_path / "old_engine.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: old-engine\nVersion: 7.1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed_version("old-engine") == "7.1"


def test_an_engine_that_is_there_costs_no_parser_of_mail() -> None:
    code = "import sys; from toolkit.installed import installed_version; installed_version('pytest'); print('email' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
