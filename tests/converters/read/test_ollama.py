"""A model of an Ollama store is read through its manifest, and only if every byte of it is what the manifest says."""

from __future__ import annotations

import hashlib
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converters.read import read_checkpoint
from converters.read.inspect import inspect_source
from converters.read.ollama import OllamaName, license_id, parse_ollama
from tests.converters.tiny_checkpoints import tiny_model, write_gguf
from toolkit.errors import FormatError, ToolkitError, UnsupportedModelError, UsageError

APACHE = "                                 Apache License\n                           Version 2.0, January 2004\n"
KIND = "application/vnd.ollama.image."


@cache
def tiny_gguf() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write_gguf(tiny_model("llama"), Path(folder) / "tiny.gguf").read_bytes()


class Store:
    """An Ollama store with one model of a random llama."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs").mkdir(parents=True)
        self.gguf = tiny_gguf()
        self.layers = [
            self.layer("model", self.gguf),
            self.layer("license", APACHE.encode()),
            self.layer("template", b"{{ .System }} {{ .Prompt }}"),
            self.layer("params", b'{"stop":["<|im_end|>"]}'),
        ]
        self.write()

    def layer(self, kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (self.root / "blobs" / f"sha256-{digest}").write_bytes(content)
        return {"mediaType": KIND + kind, "digest": f"sha256:{digest}", "size": len(content)}

    def write(self, *name: str, **changes: Any) -> Path:
        path = self.root.joinpath("manifests", *(name or ("registry.ollama.ai", "library", "tiny", "latest")))
        path.parent.mkdir(parents=True, exist_ok=True)
        config = self.layer("config", b'{"model_format":"gguf","model_family":"llama"}')
        path.write_text(json.dumps({"schemaVersion": 2, "config": config, "layers": self.layers} | changes))
        return path

    def blob(self, index: int) -> Path:
        return self.root / "blobs" / self.layers[index]["digest"].replace(":", "-")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    return Store(tmp_path / "models")


def test_a_model_is_the_gguf_file_its_manifest_points_at(store: Store, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(store.gguf)
    direct, through = read_checkpoint(tmp_path / "tiny.gguf"), read_checkpoint("ollama:tiny")
    assert (through.name, through.spec) == ("tiny", direct.spec)
    for name in direct.tensors.names():
        np.testing.assert_array_equal(through.tensors.load(name), direct.tensors.load(name))
    assert through.source.uri == "ollama:tiny:latest"
    assert list(through.source.sha256.values()) == [hashlib.sha256(store.gguf).hexdigest()]
    assert through.license.id == "Apache-2.0"


def test_tags_namespaces_and_hosts_are_folders(store: Store) -> None:
    store.write("registry.ollama.ai", "library", "tiny", "135m-q8")
    store.write("hf.co", "someone", "tiny-gguf", "q4")
    assert read_checkpoint("ollama:tiny:135m-q8").name == "tiny-135m"  # a checkpoint is not called after its storage
    assert read_checkpoint("ollama:hf.co/someone/tiny-gguf:q4").source.uri == "ollama:hf.co/someone/tiny-gguf:q4"


def test_inspecting_tells_the_same_without_loading(store: Store) -> None:
    facts = inspect_source("ollama:tiny")
    assert (facts["name"], facts["format"], facts["license"]["id"], facts["model_type"]) == ("tiny", "gguf", "Apache-2.0", "llama")
    assert facts["source"]["uri"] == "ollama:tiny:latest"
    store.write("registry.ollama.ai", "library", "tiny", "chat")
    assert inspect_source("ollama:tiny:chat")["name"] == read_checkpoint("ollama:tiny:chat").name == "tiny-chat"


def test_a_changed_blob_is_refused(store: Store) -> None:
    blob = store.blob(0)
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    with pytest.raises(FormatError, match="is not the file that was published"):
        read_checkpoint("ollama:tiny")


def test_a_changed_licence_is_refused(store: Store) -> None:
    store.blob(1).write_bytes(APACHE.replace("2.0", "9.9").encode())
    with pytest.raises(FormatError, match="ollama:tiny:latest is damaged in the Ollama store"):
        read_checkpoint("ollama:tiny")


def test_a_licence_is_proven_before_it_is_read_and_refused_unread_if_it_is_no_text(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read_bytes, read = Path.read_bytes, []
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path.name), read_bytes(path))[1])
    store.blob(1).write_bytes(APACHE.replace("2.0", "9.9").encode())
    with pytest.raises(FormatError, match="is damaged in the Ollama store"):
        read_checkpoint("ollama:tiny")
    store.layers[1] = store.layer("license", APACHE.encode())
    store.layers += [store.layer("license", bytes([65 + n]) * 2**19) for n in range(2)]
    store.write()
    with pytest.raises(FormatError, match=rf"its licences have {2**20 + len(APACHE)} bytes; 1048576 are allowed"):
        read_checkpoint("ollama:tiny")
    assert not {store.blob(index).name for index in (1, -1, -2)} & set(read)


def test_a_cut_blob_is_refused_before_it_is_hashed(store: Store) -> None:
    store.blob(0).write_bytes(store.gguf[:-1])
    with pytest.raises(FormatError, match=rf"has {len(store.gguf) - 1} bytes, the manifest says {len(store.gguf)}"):
        read_checkpoint("ollama:tiny")


def test_a_missing_blob_says_what_to_pull(store: Store) -> None:
    store.blob(0).unlink()
    with pytest.raises(FormatError, match="is not whole in the Ollama store\n.*is not among its blobs\n  fix: ollama pull tiny:latest"):
        read_checkpoint("ollama:tiny")


@pytest.mark.parametrize(("asked", "why"), [("ollama:tiny:7b", "it has the tags latest of tiny"), ("ollama:other", "it has tiny")])
def test_an_absent_model_names_what_is_there(asked: str, why: str, store: Store) -> None:
    with pytest.raises(UsageError, match=why):
        read_checkpoint(asked)


def test_an_absent_store_says_how_to_name_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="it has no models; OLLAMA_MODELS names another store"):
        read_checkpoint("ollama:tiny")


@pytest.mark.parametrize("kind", ["adapter", "projector"])
def test_layers_that_change_the_model_are_refused_by_name(kind: str, store: Store) -> None:
    store.layers.append(store.layer(kind, b"x"))
    store.write()
    with pytest.raises(UnsupportedModelError, match=f"has a layer of kind {kind}"):
        read_checkpoint("ollama:tiny")


DAMAGED = {
    "schemaVersion is 1": {"schemaVersion": 1},
    "layers a str": {"layers": "x"},
    "a layer has no mediaType": {"layers": [{}]},
    "it lists 0 model layers": {"layers": []},
    "is no sha256": {"layers": [{"mediaType": KIND + "model", "digest": "sha256:../../../etc/passwd", "size": 1}]},
}


@pytest.mark.parametrize("why", DAMAGED)
def test_a_damaged_manifest_is_refused(why: str, store: Store) -> None:
    store.write(**DAMAGED[why])
    with pytest.raises(FormatError, match=why):
        read_checkpoint("ollama:tiny")


@pytest.mark.parametrize(
    "source",
    ["ollama:", "ollama:../../etc/passwd", "ollama:a/b/c/d", "ollama:a:../b", "ollama:/etc", "ollama:a:", "ollama:a//b", "ollama:.."],
)
def test_names_that_are_paths_are_refused(source: str) -> None:
    with pytest.raises(UsageError, match="is no name of an Ollama model"):
        parse_ollama(source)


@given(st.text(max_size=60))
def test_no_name_leads_out_of_the_store(text: str) -> None:
    try:
        name = parse_ollama("ollama:" + text)
    except UsageError:
        return
    path = Path("/store/manifests").joinpath(*name)
    assert path.parts[:3] == ("/", "store", "manifests") and len(path.parts) == 7 and ".." not in path.parts
    assert parse_ollama(name.uri) == name


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20), lambda c: st.lists(c) | st.dictionaries(st.text(max_size=10), c)
    )
)
def test_no_manifest_ends_in_a_traceback(layers: Any) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OLLAMA_MODELS", folder)
        path = Path(folder, "manifests", *OllamaName("registry.ollama.ai", "library", "x", "latest"))
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
        with pytest.raises(ToolkitError):
            read_checkpoint("ollama:x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (APACHE, "Apache-2.0"),
        ("Gemma Terms of Use\n\nLast modified", "gemma"),
        ("LLAMA 3.2 COMMUNITY LICENSE AGREEMENT", "llama3.2"),
        ("Gemma Terms of Use\n\nThe tokenizer is under the Apache License\nVersion 2.0", "gemma"),
        ("MIT License\n\nBuilt with Llama 3.1 Community License material", "MIT"),
        ("Mine", "unknown"),
    ],
)
def test_licences_are_known_by_their_heading(text: str, expected: str) -> None:
    assert license_id(text) == expected
