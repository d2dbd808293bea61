"""Reader for `ollama:name[:tag]`: a model of an Ollama store, from its manifest to the GGUF blob, digests checked.

A store is a folder of manifests (JSON, one a tag) and of blobs named after their SHA-256. Layers say by media type what a blob
is: the model, its licence, Ollama's own template. That template is written in Go's language and is not used: the GGUF file
carries the checkpoint's own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from converters.checkpoint import Checkpoint
from converters.read.gguf import read_gguf
from converters.read.hashes import hash_files
from converters.read.json_file import read_json_object
from converters.read.names import checkpoint_name
from toolkit.errors import FormatError, UnsupportedModelError, UsageError
from toolkit.manifest import LicenseRecord, SourceRecord

SCHEME = "ollama:"
STORE_VARIABLE = "OLLAMA_MODELS"
_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_KIND = "application/vnd.ollama.image."
_MAX_MANIFEST_BYTES = 2**20
_MAX_LICENSE_BYTES = 2**20
# What the first lines of a licence say: identifier.
_LICENSES = {
    r"apache license\s+version 2\.0": "Apache-2.0",
    r"gemma terms of use": "gemma",
    r"\bmit license": "MIT",
    r"llama 3\.(\d) community license": "llama3.{0}",
    r"llama 3 community license": "llama3",
}


class OllamaName(NamedTuple):
    """`[[host/]namespace/]model[:tag]`, each part a plain file name."""

    host: str
    namespace: str
    model: str
    tag: str

    @property
    def uri(self) -> str:
        """The shortest spelling that says the same, with the tag."""
        path = self.model if (self.host, self.namespace) == (_HOST, _NAMESPACE) else f"{self.namespace}/{self.model}"
        return f"{SCHEME}{path if self.host == _HOST else f'{self.host}/{self.namespace}/{self.model}'}:{self.tag}"

    @property
    def checkpoint(self) -> str:
        """What a checkpoint read from it is called: without the tag if that is `latest`."""
        return checkpoint_name(self.model if self.tag == _TAG else f"{self.model}-{self.tag}")


@dataclass(frozen=True)
class OllamaModel:
    """A model of a store whose blobs are there and have the sizes the manifest states.

    Args:
        name: Parsed.
        blob: Its GGUF file, named after its SHA-256.
        source: Where it came from, with the hashes of manifest and model.
        license_text: The licence layer's text; empty if there is none.
    """

    name: OllamaName
    blob: Path
    source: SourceRecord
    license_text: str


def is_ollama(source: str) -> bool:
    """Whether a source names a model of an Ollama store."""
    return source.startswith(SCHEME)


def read_ollama(source: str, *, name: str | None = None) -> Checkpoint:
    """Read a model of the local Ollama store; weights stay in it.

    Args:
        source: `ollama:name[:tag]`.
        name: Name of the checkpoint; `name-tag` by default, without the tag if that is `latest`.

    Raises:
        UsageError: No such name, or it is no name at all.
        FormatError: The manifest or a blob is missing or damaged, or a blob has another digest than its name.
        UnsupportedModelError: The model has an adapter or a projector, or its architecture is not supported.
    """
    model = find_ollama(source)
    checkpoint = read_gguf(model.blob, name=name or model.name.checkpoint, source=model.source)
    if checkpoint.license.id == "unknown" and model.license_text:
        return replace(checkpoint, license=LicenseRecord(id=license_id(model.license_text)))
    return checkpoint


def find_ollama(source: str) -> OllamaModel:
    """Follow a name to its blob. Raises as `read_ollama`, but reads no weight."""
    name, store = parse_ollama(source), ollama_store()
    path = store.joinpath("manifests", *name)
    if not path.is_file():
        raise UsageError(f"there is no {name.uri} in the Ollama store {store}", why=_what_is_there(store, name), fix=_pull(name))
    manifest = read_json_object(path, max_bytes=_MAX_MANIFEST_BYTES)
    layers = _layers(manifest, path)
    for kind in ("adapter", "projector"):
        if layers.get(_KIND + kind):
            what, why = f"{name.uri} has a layer of kind {kind}", "only the model's own weights are read"
            raise UnsupportedModelError(what, why=why, fix="convert from the Hugging Face checkpoint, with --adapter for an adapter")
    models = layers.get(_KIND + "model", [])
    if len(models) != 1:
        raise _damaged(path, f"it lists {len(models)} model layers, one is read")
    blob = _blob(store, models[0], name, path)
    license_text = _license_text([_blob(store, layer, name, path) for layer in layers.get(_KIND + "license", [])], name, path)
    revision = hash_files({"manifest": path})["manifest"]
    source_record = SourceRecord(name.uri, revision, {blob.name: blob.name.removeprefix("sha256-")})
    return OllamaModel(name, blob, source_record, license_text)


def ollama_store() -> Path:
    """The folder of the store: `OLLAMA_MODELS`, else `~/.ollama/models`."""
    return Path(os.environ.get(STORE_VARIABLE) or Path.home() / ".ollama" / "models")


def parse_ollama(source: str) -> OllamaName:
    """Split a name into its parts.

    Raises:
        UsageError: A part is empty, or could lead out of the store.
    """
    path, _, tag = source.removeprefix(SCHEME).partition(":")
    parts = path.split("/")
    named = [*[_HOST, _NAMESPACE][: max(0, 3 - len(parts))], *parts, tag or _TAG]
    if len(named) != 4 or not all(_PART.fullmatch(part) for part in named) or source.endswith(":"):
        why = "a name reads [[host/]namespace/]model[:tag], of letters, digits, dots, dashes and underscores"
        raise UsageError(f"{source!r} is no name of an Ollama model", why=why, fix="give one that ollama list prints: ollama:smollm2:135m")
    return OllamaName(*named)


def license_id(text: str) -> str:
    """The licence a text is, by the first heading in it; `unknown` for any other."""
    beginning = " ".join(text[:2000].lower().split())
    found = [(match, known) for pattern, known in _LICENSES.items() if (match := re.search(pattern, beginning))]
    if not found:
        return "unknown"
    match, known = min(found, key=lambda pair: pair[0].start())  # a licence may name others further down
    return known.format(*match.groups())


def _layers(manifest: Mapping[str, Any], path: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Layers by media type."""
    if manifest.get("schemaVersion") != 2 or not isinstance(manifest.get("layers"), list):
        raise _damaged(path, f"schemaVersion is {manifest.get('schemaVersion')!r} and layers a {type(manifest.get('layers')).__name__}")
    by_type: dict[str, list[Mapping[str, Any]]] = {}
    for layer in manifest["layers"]:
        if not isinstance(layer, dict) or not isinstance(layer.get("mediaType"), str):
            raise _damaged(path, "a layer has no mediaType")
        by_type.setdefault(layer["mediaType"], []).append(layer)
    return by_type


def _digest(layer: Mapping[str, Any], path: Path) -> str:
    match = _DIGEST.fullmatch(str(layer.get("digest")))
    if match is None:
        raise _damaged(path, f"the digest {str(layer.get('digest'))[:80]!r} is no sha256")
    return match[1]


def _blob(store: Path, layer: Mapping[str, Any], name: OllamaName, path: Path) -> Path:
    blob = store / "blobs" / f"sha256-{_digest(layer, path)}"
    try:
        size = blob.stat().st_size
    except OSError as error:
        why = f"{blob.name[:23]}... is not among its blobs"
        raise FormatError(f"{name.uri} is not whole in the Ollama store", why=why, fix=_pull(name)) from error
    if not blob.is_file() or size != layer.get("size"):
        why = f"{blob.name[:23]}... has {size} bytes, the manifest says {layer.get('size')}"
        raise FormatError(f"{name.uri} is damaged in the Ollama store", why=why, fix=_pull(name))
    return blob


def _license_text(blobs: list[Path], name: OllamaName, path: Path) -> str:
    """The licence layers one after the other, once their digests are proven; a text larger than any licence is refused unread."""
    n_bytes = sum(blob.stat().st_size for blob in blobs)
    if n_bytes > _MAX_LICENSE_BYTES:
        raise _damaged(path, f"its licences have {n_bytes} bytes; {_MAX_LICENSE_BYTES} are allowed")
    _check_digests(blobs, name)
    return b"\n".join(blob.read_bytes() for blob in blobs).decode("utf-8", errors="replace")


def _check_digests(blobs: list[Path], name: OllamaName) -> None:
    for file_name, sha256 in hash_files({blob.name: blob for blob in blobs}).items():
        if file_name != f"sha256-{sha256}":
            why = f"{file_name[:23]}... has the SHA-256 {sha256[:16]}..."
            raise FormatError(f"{name.uri} is damaged in the Ollama store", why=why, fix=_pull(name))


def _what_is_there(store: Path, name: OllamaName) -> str:
    folder = store.joinpath("manifests", *name[:3])
    if folder.is_dir():
        return f"it has the tags {', '.join(sorted(entry.name for entry in folder.iterdir())[:8]) or 'none'} of {name.model}"
    models = store.joinpath("manifests", _HOST, _NAMESPACE)
    there = sorted(entry.name for entry in models.iterdir())[:8] if models.is_dir() else []
    return f"it has {', '.join(there)}" if there else f"it has no models; {STORE_VARIABLE} names another store"


def _pull(name: OllamaName) -> str:
    return f"ollama pull {name.uri.removeprefix(SCHEME)}"


def _damaged(path: Path, why: str) -> FormatError:
    return FormatError(f"the Ollama manifest {'/'.join(path.parts[-3:])} is damaged", why=why, fix="pull the model again: ollama pull NAME")
