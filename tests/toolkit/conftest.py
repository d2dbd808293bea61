"""Real bundles of a tiny model, and folders of a test module's own, for the runtime's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_bundle import CONTEXT_LENGTH, can_export, tiny_bundle, tiny_model
from tests.toolkit.clock import Clock
from tests.toolkit.fake_backend import END_ID, FakeBackend
from tests.toolkit.small_manifest import small_bundle
from toolkit.bundle import Bundle
from toolkit.cache import CACHE_VARIABLE
from toolkit.engine import Engine
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


@pytest.fixture
def engine(chat_bundle: Path) -> Iterator[Engine]:
    """A real one, in a process of its own where that can be, with all the context it may have."""
    with Engine.open(chat_bundle, context_length=CONTEXT_LENGTH) as engine:
        yield engine


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """What every bundle is opened with instead of an engine's library."""
    backend = FakeBackend()
    monkeypatch.setattr("toolkit.engine.load_backend", lambda name: backend)
    return backend


@pytest.fixture
def fake_bundle(tmp_path: Path, own_folders: Path) -> Bundle:
    """A bundle of plain bytes whose stop token is the fake backend's."""
    return Bundle.open(small_bundle(tmp_path / "bundle", stop_token_ids=(END_ID,)))


@pytest.fixture
def fake_engine(backend: FakeBackend, fake_bundle: Bundle) -> Iterator[Engine]:
    """An engine of the fake backend with a fixed context."""
    with Engine.open(fake_bundle, context_length=1000) as engine:
        yield engine


@pytest.fixture
def clock() -> Clock:
    """Seconds of the test's own."""
    return Clock()
