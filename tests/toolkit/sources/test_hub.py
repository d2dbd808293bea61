"""The real huggingface_hub library against a loopback hub, in processes of their own: it reads its settings once, at import."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounts import mounted
from tests.toolkit.sources.file_server import FileServer, serving
from toolkit.catalog import HfSource
from toolkit.errors import FormatError
from toolkit.sources.hub_cache import HubFile, choose_files, hub_cache, remove_repository, repository_bytes

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "org/tiny"
WEIGHTS = os.urandom(300_000)
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b'{"model": {}}' * 50,
    "model.safetensors": WEIGHTS,
}
UNWANTED = {"README.md": b"# card", "pytorch_model.bin": b"x" * 1000, "onnx/model.safetensors": b"y" * 1000}

FETCH = """
import json, sys, time
time.sleep = lambda seconds: None
from toolkit.errors import ToolkitError
from toolkit.fetch import fetch
from toolkit.progress import ByteLines
try:
    fetched = fetch(sys.argv[1], progress=ByteLines())
except ToolkitError as error:
    print(json.dumps({"error": type(error).__name__, "code": error.exit_code, "text": str(error)}))
else:
    source, license_id = fetched.source, fetched.license.id if fetched.license else None
    print(json.dumps({"path": str(fetched.path), "revision": source.revision, "sha256": source.sha256, "license": license_id}))
"""


def git_blob(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def sibling(name: str, content: bytes) -> dict[str, Any]:
    described: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_blob(content)}
    if name.endswith(("safetensors", "bin")):
        described["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return described


@pytest.fixture
def hub(own_folders: Path) -> Iterator[FileServer]:
    """A loopback hub with one repository `org/tiny`, its main branch at COMMIT."""
    everything = {**FILES, **UNWANTED}
    info = {
        "id": REPO,
        "modelId": REPO,
        "sha": COMMIT,
        "private": False,
        "tags": [],
        "downloads": 1,
        "likes": 1,
        "cardData": {"license": "apache-2.0"},
        "siblings": [sibling(name, content) for name, content in everything.items()],
    }
    served = FileServer({}, headers={})
    for revision in ("main", COMMIT):
        served.files[f"/api/models/{REPO}/revision/{revision}"] = json.dumps(info).encode()
        served.headers[f"/api/models/{REPO}/revision/{revision}"] = {"Content-Type": "application/json"}
    for name, content in everything.items():
        path = f"/{REPO}/resolve/{COMMIT}/{name}"
        served.files[path] = content
        etag = hashlib.sha256(content).hexdigest() if name.endswith(("safetensors", "bin")) else git_blob(content)
        served.headers[path] = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
    with serving(served):
        yield served


def path_of(name: str) -> str:
    return f"/{REPO}/resolve/{COMMIT}/{name}"


def fetch(hub: FileServer | None, source: str = f"hf:{REPO}") -> tuple[dict[str, Any], str]:
    """Run one fetch in a new process; returns its answer and what it said on stderr. No hub: offline."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "0" if hub else "1", "HF_HUB_DISABLE_XET": "1"}
    environment["HF_ENDPOINT"] = hub.url if hub else "http://127.0.0.1:9"
    result = subprocess.run([sys.executable, "-c", FETCH, source], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout)), result.stderr


def test_a_repository_is_fetched_at_its_commit_with_only_the_files_needed(hub: FileServer) -> None:
    answer, _ = fetch(hub)
    assert answer["revision"] == COMMIT
    assert answer["license"] == "apache-2.0"
    assert answer["sha256"] == {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    assert {file.name: file.read_bytes() for file in Path(answer["path"]).iterdir()} == FILES
    assert Path(answer["path"]).is_relative_to(hub_cache())
    assert not any(hub.transfers(path_of(name)) for name in UNWANTED)


def test_a_second_fetch_transfers_nothing(hub: FileServer) -> None:
    fetch(hub)
    fetch(hub)
    assert [hub.transfers(path_of(name)) for name in FILES] == [1, 1, 1]


def test_a_pinned_commit_that_is_whole_needs_no_network(hub: FileServer) -> None:
    first, _ = fetch(hub, f"hf:{REPO}@{COMMIT}")
    n_requests = len(hub.requests)
    assert fetch(hub, f"hf:{REPO}@{COMMIT}")[0] == first
    assert len(hub.requests) == n_requests


def test_an_earlier_fetch_serves_when_offline_and_says_so(hub: FileServer) -> None:
    first, _ = fetch(hub)
    answer, said = fetch(None)
    assert answer == first
    assert "no network, using commit 0123456789ab from this disk" in said


def test_a_repository_another_program_fetched_is_adopted_after_hashing_it(hub: FileServer, own_folders: Path) -> None:
    first, _ = fetch(hub)
    (record,) = (own_folders / "cache" / "hub").iterdir()
    record.unlink()
    answer, _ = fetch(None)
    assert (answer["path"], answer["sha256"]) == (first["path"], first["sha256"])


def test_a_cached_file_with_a_flipped_byte_is_not_used_offline(hub: FileServer) -> None:
    first, _ = fetch(hub)
    blob = (Path(first["path"]) / "model.safetensors").resolve()
    blob.write_bytes(bytes([WEIGHTS[0] ^ 1]) + WEIGHTS[1:])
    answer, _ = fetch(None)
    assert answer["error"] == "SourceUnavailableError"
    assert fetch(hub)[0] == first


def test_offline_without_a_copy_fails_at_once_with_the_variable_named(own_folders: Path) -> None:
    answer, _ = fetch(None)
    assert (answer["error"], answer["code"]) == ("SourceUnavailableError", 1)
    assert "HF_HUB_OFFLINE is set" in answer["text"]


def test_a_transfer_cut_in_the_middle_goes_on_where_it_was(hub: FileServer) -> None:
    hub.cuts[path_of("model.safetensors")] = 2
    answer, _ = fetch(hub)
    assert answer["sha256"]["model.safetensors"] == hashlib.sha256(WEIGHTS).hexdigest()
    assert hub.cuts[path_of("model.safetensors")] == 0


def test_a_transfer_that_is_always_cut_ends_in_an_error_after_a_bounded_number_of_tries(hub: FileServer, own_folders: Path) -> None:
    hub.cuts_at_once = True
    hub.cuts[path_of("model.safetensors")] = 1000
    answer, _ = fetch(hub)
    assert (answer["error"], answer["code"]) == ("SourceUnavailableError", 1)
    assert "it goes on where it was" in answer["text"]
    assert hub.cuts[path_of("model.safetensors")] > 900
    assert not (own_folders / "cache" / "hub").exists()


def test_other_bytes_than_the_hub_states_are_refused_and_removed(hub: FileServer) -> None:
    hub.files[path_of("model.safetensors")] = bytes([WEIGHTS[0] ^ 1]) + WEIGHTS[1:]
    answer, _ = fetch(hub)
    assert (answer["error"], answer["code"]) == ("FormatError", 4)
    assert hashlib.sha256(WEIGHTS).hexdigest() in answer["text"]
    hub.files[path_of("model.safetensors")] = WEIGHTS
    assert fetch(hub)[0]["sha256"]["model.safetensors"] == hashlib.sha256(WEIGHTS).hexdigest()


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_repository_names_its_page_and_the_login_command(hub: FileServer, status: int) -> None:
    hub.refusals[path_of("config.json")] = (status, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
    answer, _ = fetch(hub)
    assert answer["error"] == "SourceUnavailableError"
    assert len(answer["text"].splitlines()) == 3
    assert f"https://huggingface.co/{REPO}" in answer["text"]
    assert "hf auth login" in answer["text"]


REFUSALS = {
    "no such repository": (404, "RepoNotFound", "no such repository"),
    "a private repository": (401, "RepoNotFound", "hf auth login"),
    "no such revision": (404, "RevisionNotFound", "no revision 'main'"),
    "a broken hub": (500, "", "the network or the hub failed"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_said_in_three_lines(hub: FileServer, case: str) -> None:
    status, code, text = REFUSALS[case]
    hub.refusals[f"/api/models/{REPO}/revision/main"] = (status, {"X-Error-Code": code} if code else {})
    answer, _ = fetch(hub)
    assert answer["error"] == "SourceUnavailableError"
    assert text in answer["text"]
    assert len(answer["text"].splitlines()) == 3


def test_a_server_that_does_not_listen_is_a_network_error(own_folders: Path) -> None:
    answer, _ = fetch(FileServerThatIsDown())
    assert answer["error"] == "SourceUnavailableError"
    assert "the network or the hub failed" in answer["text"]


@pytest.mark.parametrize("way", ["a file in the way", "read-only"])
def test_a_hub_cache_that_cannot_be_written_to_is_no_network_error(
    hub: FileServer, own_folders: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    (own_folders / "file").write_text("in the way")
    with mounted(own_folders / "disk", "size=100m,ro") as disk:
        monkeypatch.setenv("HF_HOME", str((disk if way == "read-only" else own_folders / "file") / "hf"))
        answer, _ = fetch(hub)
    assert answer["code"] == 2, answer
    assert "cannot be written" in answer["text"] and "HF_HOME" in answer["text"]


class FileServerThatIsDown(FileServer):
    def __init__(self) -> None:
        super().__init__({})
        self.url = "http://127.0.0.1:9"


def hub_files(*names: str) -> dict[str, HubFile]:
    return {name: HubFile(name, 1, None, None) for name in names}


def test_shards_are_chosen_and_other_variants_are_not() -> None:
    names = ("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json")
    others = ("model.fp32-00001-of-00002.safetensors", "consolidated.safetensors", "a/b.json")
    chosen = choose_files(HfSource(REPO), hub_files(*names, *others))
    assert {file.name for file in chosen} == set(names)


@pytest.mark.parametrize(
    ("names", "missing"), [(("model.safetensors",), "config.json"), (("config.json", "pytorch_model.bin"), "model.safetensors")]
)
def test_a_repository_without_configuration_or_safetensors_is_refused(names: tuple[str, ...], missing: str) -> None:
    with pytest.raises(FormatError, match="not a transformers checkpoint in safetensors form") as caught:
        choose_files(HfSource(REPO), hub_files(*names))
    assert f"no {missing}" in caught.value.why


def test_removing_a_repository_frees_its_bytes(hub: FileServer, own_folders: Path) -> None:
    fetch(hub)
    size = repository_bytes(REPO)
    assert size >= sum(map(len, FILES.values()))
    assert remove_repository(REPO) == size
    assert (repository_bytes(REPO), remove_repository(REPO)) == (0, 0)
    assert fetch(None)[0]["error"] == "SourceUnavailableError"
