"""Abilities of other rooms that the runtime may use when they are installed, without importing those rooms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolkit.errors import BackendUnavailableError

GROUP = "ondevice_toolkit.plugins"
PURPOSES = {
    "inspect_source": "reading a checkpoint that is no bundle",
    "compare_bundles": "comparing two bundles",
    "verify_fidelity": "measuring a bundle against its checkpoint",
}
_FIX = "pip install 'ondevice-toolkit[convert]'"


def load_plugin(name: str) -> Callable[..., Any]:
    """The function registered as entry point `name` of the group `ondevice_toolkit.plugins`.

    Raises:
        BackendUnavailableError: Nothing is registered, or a package it needs is not installed. (Any other ImportError
            is a defect of the plug-in and raised as it is.)
    """
    from importlib import metadata

    purpose = PURPOSES[name]
    found = list(metadata.entry_points(group=GROUP, name=name))
    if not found:
        raise BackendUnavailableError(f"{purpose} is not installed here", why=f"no package offers {name}", fix=_FIX)
    try:
        plugin: Callable[..., Any] = found[0].load()
    except ModuleNotFoundError as error:
        raise missing_package(name, error) from error
    return plugin


def call_plugin(name: str, *args: Any, **options: Any) -> Any:
    """Load a plug-in and call it; a package that it misses only now is reported like one missing at once."""
    plugin = load_plugin(name)
    try:
        return plugin(*args, **options)
    except ModuleNotFoundError as error:
        raise missing_package(name, error) from error


def missing_package(name: str, error: ModuleNotFoundError) -> BackendUnavailableError:
    """The error for a plug-in whose package is not installed."""
    return BackendUnavailableError(f"{PURPOSES[name]} needs a package that is not installed", why=str(error), fix=_FIX)
