"""Versions of installed distributions, without loading `importlib.metadata` (30 ms of e-mail parsers) where a folder's name tells."""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache

UNKNOWN = "unknown"
_SEPARATORS = re.compile(r"[-_.]+")


@lru_cache(maxsize=64)
def installed_version(distribution: str) -> str:
    """The version of a distribution, or `unknown`.

    Its `NAME-VERSION.dist-info` folder is looked for as PyPA's "Recording installed projects" describes, in the order of `sys.path`;
    what is installed in another way is asked of `importlib.metadata`.
    """
    wanted = _normalized(distribution)
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # a zip file, or a folder that is not there
            continue
        for name in names:
            stem, _, suffix = name.rpartition(".")
            project, _, version = stem.partition("-")
            if suffix == "dist-info" and version and _normalized(project) == wanted:
                return version
    return _asked(distribution)


def _normalized(name: str) -> str:
    return _SEPARATORS.sub("-", name).lower()


def _asked(distribution: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return UNKNOWN
