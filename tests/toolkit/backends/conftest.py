"""One tiny model as a bundle for every backend, and what transformers says with it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_targets import TARGETS, tiny_targets
from toolkit.backends import BACKENDS, load_backend
from toolkit.bundle import Bundle
from toolkit.device.profile import probe_device
from toolkit.diagnosis import EngineReport, diagnose
from toolkit.manifest import MANIFEST_NAME, FileRecord, Manifest
from toolkit.manifest_reader import load_manifest

LIBRARIES = {"litert": "litert_lm", "onnx": "onnxruntime_genai", "mlx": "mlx_lm", "gguf": "xllamacpp", "reference": "transformers"}


@pytest.fixture(scope="session")
def targets_folder() -> Path:
    """See `tests.tiny_targets`. Tests must not change it."""
    if util.find_spec("torch") is None:
        pytest.skip("needs the convert extra to convert the tiny model")
    return tiny_targets()


@pytest.fixture(scope="module", params=sorted(BACKENDS))
def backend_name(request: pytest.FixtureRequest) -> str:
    """Every registered backend whose library is here: a new one is tested by being registered."""
    name: str = request.param
    library = LIBRARIES.get(name, name)
    if util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    return name


@pytest.fixture(scope="module")
def tiny(backend_name: str, request: pytest.FixtureRequest) -> Path:
    """The tiny chat model in float32 as the backend opens it."""
    target = load_backend(backend_name).targets[0]
    if target == "litert":
        folder: Path = request.getfixturevalue("chat_bundle")
        return folder
    if util.find_spec(TARGETS[target]) is None:
        pytest.skip(f"{TARGETS[target]} is needed to convert to {target}")
    folder = request.getfixturevalue("targets_folder") / f"tiny-{target}-fp32"
    return folder


@pytest.fixture(scope="session")
def reports() -> dict[str, EngineReport]:
    """What `toolkit doctor` reports of each engine."""
    return {report.name: report for report in diagnose(probe_device())}


class Oracle:
    """transformers on the checkpoint that every bundle was made of."""

    def __init__(self, checkpoint: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._torch = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)

    def go_on(self, text: str, n_tokens: int, *, n_start_tokens: int = 0) -> str:
        """Greedy text after `text`, and after a BOS where the engine puts one."""
        start = [self._tokenizer.bos_token_id] * n_start_tokens
        ids = self._torch.tensor([[*start, *self._tokenizer.encode(text, add_special_tokens=False)]])
        with self._torch.inference_mode():
            done = self._model.generate(ids, attention_mask=self._torch.ones_like(ids), max_new_tokens=n_tokens, do_sample=False)
        return str(self._tokenizer.decode(done[0, ids.shape[1] :], skip_special_tokens=True))

    def render(self, *messages: tuple[str, str]) -> str:
        """A conversation through the checkpoint's template."""
        given = [{"role": role, "content": content} for role, content in messages]
        return str(self._tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=True))


@pytest.fixture(scope="session")
def oracle(targets_folder: Path) -> Oracle:
    """See `Oracle`."""
    return Oracle(targets_folder / "tiny")


def resealed(folder: Path, out: Path, name: str, content: bytes) -> Path:
    """A copy of a bundle whose file `name` holds `content`, with a manifest that says so: only an engine can notice."""
    import shutil

    shutil.copytree(folder, out)
    (out / name).write_bytes(content)
    manifest: Manifest = load_manifest(out)
    record = FileRecord(name, len(content), hashlib.sha256(content).hexdigest())
    files = tuple(record if old.path == name else old for old in manifest.files)
    (out / MANIFEST_NAME).write_text(replace(manifest, files=files).to_json(), encoding="utf-8")
    Bundle.open(out)
    return out
