"""The libraries a target writes with: their versions for the manifest, and what installs one that is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import metadata

from toolkit.errors import BackendUnavailableError


def installed_versions(distributions: Iterable[str], *, target: str, extra: str = "convert") -> Mapping[str, str]:
    """Version of each distribution.

    Args:
        distributions: As pip names them.
        target: Who needs them, for the error.
        extra: Extra, or extras, of this project that install them.

    Raises:
        BackendUnavailableError: One is not installed.
    """
    return {name: _version(name, target, extra) for name in distributions}


def _version(name: str, target: str, extra: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError as error:
        raise BackendUnavailableError(
            f"the {target} target cannot be used here", why=f"{name} is not installed", fix=f"pip install 'ondevice-toolkit[{extra}]'"
        ) from error
