"""What of onnxruntime-genai the contract does not show: processors that are not there, and packages."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.toolkit.backends.conftest import Oracle, resealed
from tests.toolkit.backends.test_contract import streamed
from toolkit.backends.base import Message, Sampling
from toolkit.backends.onnx import BACKEND, asked_providers
from toolkit.bundle import Bundle
from toolkit.errors import BackendUnavailableError, EngineError

PROMPT = "check the pump"


@pytest.fixture
def tiny_onnx(targets_folder: Path) -> Path:
    pytest.importorskip("onnxruntime_genai", reason="pip install 'ondevice-toolkit[onnx]'")
    return targets_folder / "tiny-onnx-fp32"


def asking_for(folder: Path, out: Path, *providers: dict[str, Any]) -> Bundle:
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["decoder"]["session_options"]["provider_options"] = list(providers)
    return Bundle.open(resealed(folder, out, "genai_config.json", json.dumps(config).encode()))


def test_a_processor_that_is_not_here_is_said_and_the_cpu_answers(
    tiny_onnx: Path, tmp_path: Path, oracle: Oracle, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = asking_for(tiny_onnx, tmp_path / "tiny-onnx-cuda", {"cuda": {}})
    with caplog.at_level(logging.WARNING):
        engine = BACKEND.open_engine(bundle, context_length=128, threads=1)
    assert "asks for cuda" in caplog.text and "runs on the CPU" in caplog.text
    assert streamed(engine.session(Sampling(), max_tokens=8), PROMPT) == oracle.go_on(PROMPT, 8)
    engine.close()


def test_a_bundle_that_asks_for_nothing_says_nothing(tiny_onnx: Path, caplog: pytest.LogCaptureFixture) -> None:
    BACKEND.open_engine(Bundle.open(tiny_onnx), context_length=128, threads=1).close()
    assert caplog.records == []


def test_the_cpu_is_no_accelerator_to_ask_for() -> None:
    def config(*providers: dict[str, Any]) -> dict[str, Any]:
        return {"model": {"decoder": {"session_options": {"provider_options": list(providers)}}}}

    assert asked_providers(config({"cuda": {"device_id": "0"}}, {"CPU": {}})) == ("cuda",)
    assert asked_providers(config()) == asked_providers({"model": {"decoder": {}}}) == ()


def test_without_the_package_the_error_names_the_extra(tiny_onnx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", None)
    with pytest.raises(BackendUnavailableError) as caught:
        BACKEND.open_engine(Bundle.open(tiny_onnx), context_length=64, threads=1)
    assert caught.value.exit_code == 5 and "ondevice-toolkit[onnx]" in caught.value.fix


def test_a_base_model_that_wants_a_bos_has_it_first(tiny_onnx: Path, tmp_path: Path, oracle: Oracle) -> None:
    from dataclasses import replace

    bundle = Bundle.open(tiny_onnx)
    wants = Bundle(bundle.path, replace(bundle.manifest, tokenizer={**bundle.manifest.tokenizer, "prepend_bos": True}))
    engine = BACKEND.open_engine(wants, context_length=128, threads=1)
    assert engine.n_start_tokens == 1
    assert streamed(engine.session(Sampling(), max_tokens=12), PROMPT) == oracle.go_on(PROMPT, 12, n_start_tokens=1)
    engine.close()


def test_a_template_that_refuses_a_conversation_is_an_error_with_its_words(tiny_onnx: Path, tmp_path: Path) -> None:
    template = b"{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}{{ messages[0]['content'] }}"
    folder = resealed(tiny_onnx, tmp_path / "bundle", "chat_template.jinja", template)
    engine = BACKEND.open_engine(Bundle.open(folder), context_length=128, threads=1)
    with pytest.raises(EngineError, match="no system role"):
        engine.render([Message("system", "s"), Message("user", "x")])
    engine.close()
