"""A folder the user may not write to is a request to mend (exit 2), a full disk a budget (exit 3): cache, configuration and hub alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from converters.cli import main as convert
from tests.converters.tiny_checkpoints import save_hf, tiny_model
from tests.mounts import mounted
from tests.toolkit.small_manifest import small_bundle
from toolkit.cache import CACHE_VARIABLE, CONFIG_VARIABLE
from toolkit.cli import main as toolkit

PULL = ["models", "pull", "smollm2-135m-instruct"]
ACCEPT = ["models", "pull", "gemma-3-270m", "--accept-license", "gemma"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_hf(tiny_model("llama-tied"), tmp_path_factory.mktemp("sound") / "tiny")


def convert_tiny(checkpoint: Path, folder: Path) -> int:
    return convert([str(checkpoint), "--recipe", "int8", "--context", "128", "--out", str(folder / "out")])


def assert_three_lines(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    lines = capsys.readouterr().err.rstrip().splitlines()[-3:]
    assert lines[1].startswith("  why: ") and lines[2].startswith("  fix: ")
    assert all(word in "\n".join(lines) for word in words), lines


@pytest.mark.parametrize("way", ["read-only", "a file in the way"])
def test_a_cache_that_cannot_be_written_to_exits_2_wherever_it_is_needed(
    checkpoint: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    (own_folders / "file").write_text("in the way")
    with mounted(own_folders / "disk", "size=1m,ro") as disk:
        monkeypatch.setenv(CACHE_VARIABLE, str((disk if way == "read-only" else own_folders / "file") / "cache"))
        assert convert_tiny(checkpoint, own_folders) == 2
        assert_three_lines(capsys, "cannot be written", CACHE_VARIABLE)
        assert not (own_folders / "out").exists()
        assert toolkit(PULL) == 2
        assert_three_lines(capsys, "cannot be written", CACHE_VARIABLE)
        assert toolkit(["models", "list"]) == 0
        assert toolkit(["verify", str(small_bundle(own_folders / "bundle"))]) == 0


def test_a_full_cache_exits_3_and_a_check_needs_none(
    checkpoint: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with mounted(own_folders / "disk", "size=1m") as disk:
        monkeypatch.setenv(CACHE_VARIABLE, str(disk / "cache"))
        (disk / "cache").mkdir()
        with (disk / "fill").open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space left"):
            for _ in range(1024):
                stream.write(bytes(4096))
        assert convert_tiny(checkpoint, own_folders) == 3
        assert_three_lines(capsys, "free")
        assert toolkit(PULL) == 3
        assert_three_lines(capsys, "free")
        assert toolkit(["verify", str(small_bundle(own_folders / "bundle"))]) == 0


@pytest.mark.parametrize(("options", "code"), [("size=1m,ro", 2), ("size=4k", 3)])
def test_a_licence_that_cannot_be_noted_down_is_not_accepted(
    own_folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: str, code: int
) -> None:
    with mounted(own_folders / "disk", options) as disk:
        if code == 3:
            (disk / "fill").write_bytes(bytes(4096))
        monkeypatch.setenv(CONFIG_VARIABLE, str(disk / "config") if code == 2 else str(disk))
        assert toolkit(ACCEPT) == code
        assert_three_lines(capsys, CONFIG_VARIABLE)
