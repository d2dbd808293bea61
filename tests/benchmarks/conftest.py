"""A real bundle of a tiny model, for the benchmarks that run an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_bundle import can_export, tiny_bundle, tiny_model


@pytest.fixture(scope="session")
def tiny_chat_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a chat template. Tests must not change it."""
    pytest.importorskip("litert_lm", reason="needs the litert extra")
    if not can_export():
        pytest.skip("needs the convert extra to export the tiny model")
    return tiny_bundle(tmp_path_factory.mktemp("bundles") / "tiny-litert-fp32", model=tiny_model())
