"""What every test gets: no hub, no user folders unless it asks for real weights, and tiny things to work on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub, which reads it once
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from toolkit.cache import CACHE_VARIABLE, CONFIG_VARIABLE
from toolkit.fetch import fetch

if TYPE_CHECKING:
    from tests.tiny_speech import TinySpeech


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache, a configuration folder and a hub cache of the test's own, below the folder returned."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The real SmolLM2-135M-Instruct as GGUF Q4_1 (94 MiB), fetched into the user's cache on first use."""
    return fetch("smollm2-135m-instruct").path


@pytest.fixture(scope="session")
def gemma_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real Gemma 3 270M as GGUF Q4_K_M (241 MiB); the licence is accepted for this test run only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CONFIG_VARIABLE, str(tmp_path_factory.mktemp("config")))
        path = fetch("gemma-3-270m", accept_license="gemma").path
    return path


@pytest.fixture(scope="session")
def tiny_speech(tmp_path_factory: pytest.TempPathFactory) -> TinySpeech:
    """A tiny random Whisper with its checkpoint and float graph, lowered once for all tests."""
    from tests.tiny_speech import can_lower, make_tiny_speech

    if not can_lower():
        pytest.skip("needs the convert extra to lower the tiny Whisper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        return make_tiny_speech(tmp_path_factory.mktemp("speech"))
