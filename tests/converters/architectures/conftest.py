"""No test of a family may touch the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_folders(own_folders: Path) -> None:
    """File hashes are remembered below the test's own folder."""
