"""Which backend runs which target. To add one: a module with `BACKEND`, and its line here."""

from __future__ import annotations

from importlib import import_module

from toolkit.backends.base import InstalledBackend
from toolkit.errors import BackendUnavailableError, UsageError

BACKENDS: dict[str, str] = {
    "litert": "toolkit.backends.litert",
    "onnx": "toolkit.backends.onnx",
    "mlx": "toolkit.backends.mlx",
    "gguf": "toolkit.backends.gguf",
    "reference": "toolkit.backends.reference",
}


def backend_for(target: str) -> str:
    """Name of the first backend that opens bundles of `target`.

    Raises:
        BackendUnavailableError: This version has none.
    """
    for name in BACKENDS:
        if target in load_backend(name).targets:
            return name
    raise BackendUnavailableError(
        f"no backend of this version runs {target} bundles",
        why=f"the backends here are {', '.join(BACKENDS)}",
        fix="convert the model to another target (convert SOURCE --to litert), or upgrade: pip install --upgrade ondevice-toolkit",
    )


def load_backend(name: str) -> InstalledBackend:
    """Import the module of a backend; its engine library is imported only when a model is opened.

    Raises:
        UsageError: No backend has this name. (An ImportError inside a backend's module is raised as it is.)
    """
    if name not in BACKENDS:
        known = ", ".join(BACKENDS)
        raise UsageError(f"there is no backend {name!r}", why=f"known: {known}", fix="leave --backend out, or name one of these")
    backend: InstalledBackend = import_module(BACKENDS[name]).BACKEND
    return backend
