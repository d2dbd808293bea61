"""Real bundles of a tiny model, and folders of a test module's own, for the runtime's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_bundle import can_export, tiny_bundle, tiny_model
from toolkit.cache import CACHE_VARIABLE
from toolkit.load_mark import forget_all


@pytest.fixture(scope="session")
def tiny_litertlm() -> Path:
    """A .litertlm file of a random two-layer model."""
    pytest.importorskip("litert_lm", reason="needs the litert extra")
    if not can_export():
        pytest.skip("needs the convert extra to export the tiny model")
    return tiny_model()


@pytest.fixture(scope="session")
def chat_bundle(tiny_litertlm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a chat template. Tests must not change it."""
    return tiny_bundle(tmp_path_factory.mktemp("bundles") / "tiny-litert-fp32", model=tiny_litertlm)


@pytest.fixture(scope="session")
def base_bundle(tiny_litertlm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as a base model, without a template. Tests must not change it."""
    return tiny_bundle(tmp_path_factory.mktemp("bundles") / "tiny-base-litert-fp32", model=tiny_litertlm, chat=False)


@pytest.fixture(scope="module")
def module_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of this test module's own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(folder))
        yield folder


@pytest.fixture
def no_notes(module_cache: Path) -> None:
    """What one test did to a plan is not held against it in the next."""
    forget_all()
