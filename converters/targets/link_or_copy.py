"""Giving a finished file a second name, so that gigabytes are not written twice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def link_or_copy(source: Path, place: Path) -> None:
    """Put a finished file, which nobody writes to any more, at `place` too: as a hard link, or as a copy where a disk ends."""
    try:
        os.link(source, place)
    except OSError:
        shutil.copyfile(source, place)
