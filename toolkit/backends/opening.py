"""What every backend says when its library, or a bundle's files, cannot be opened."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from toolkit.errors import BackendUnavailableError, EngineError, FormatError, ToolkitError, one_line
from toolkit.installed import installed_version

if TYPE_CHECKING:
    from toolkit.bundle import Bundle

_Library = TypeVar("_Library")


def import_library(load: Callable[[], _Library], *, engine: str, extra: str, packages: Mapping[str, str], instead: str = "") -> _Library:
    """What `load` imports.

    Args:
        load: Imports an engine's library.
        engine: What it is called, like "ONNX".
        extra: Of this package, that installs it.
        packages: Import name -> distribution of what may be missing; the engine's own first.
        instead: What can be done instead of installing it; empty: another target used, where it does not load here.

    Raises:
        BackendUnavailableError: It is missing, or does not load here. (Whatever else it lacks is raised as it is.)
    """
    try:
        return load()
    except ModuleNotFoundError as error:
        package = packages.get((error.name or "").partition(".")[0])
        if package is None:
            raise
        raise BackendUnavailableError(
            f"the {engine} engine is not installed",
            why=f"the package {package} is missing",
            fix=f"pip install 'ondevice-toolkit[{extra}]'" + (instead and f", or {instead}"),
        ) from error
    except (ImportError, OSError, RuntimeError) as error:  # its shared libraries do not load here
        own = next(iter(packages.values()))
        raise BackendUnavailableError(
            f"the {engine} engine does not load on this machine",
            why=f"{own} {installed_version(own)}, {platform.machine()}: {one_line(error)}",
            fix=f"pip install --force-reinstall {own}, or {instead or 'use a bundle for another target'}",
        ) from error


def refused_files(bundle: Bundle, error: Exception, *, by: str, why: str = "", fix: str = "") -> ToolkitError:
    """The error for files that an engine refuses. They are those that were sealed: their hashes were compared before, so comparing
    them again finds nothing, and only writing them anew helps.

    Args:
        bundle: Theirs.
        error: What the engine raised.
        by: Its name.
        why: What it said; empty: the error's text.
        fix: What helps; empty: another conversion.
    """
    what, why = f"{by} cannot open {bundle.entry_path.name} of {bundle.name}", why or one_line(error)
    if isinstance(error, MemoryError):
        return EngineError(what, why=why, fix="use a smaller --context or a smaller model, or close other programs")
    return FormatError(what, why=why, fix=fix or f"convert the model again: convert SOURCE --to {bundle.manifest.target} --force")
