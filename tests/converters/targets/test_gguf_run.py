"""Logits of a written file: from llama.cpp, or from PyTorch on the file's own values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from converters.read import read_checkpoint
from converters.targets import gguf_run, llama_cpp
from converters.targets.gguf_plan import PlannedTensor
from converters.targets.gguf_run import LlamaCppScorer, ReadBackScorer
from converters.targets.gguf_storage import TYPES
from converters.targets.gguf_write import write_gguf
from tests.converters.targets.gguf_files import BLOCKS, TOKEN_IDS, writable_model, write
from tests.converters.tiny_checkpoints import logits, save_hf
from toolkit.errors import BackendUnavailableError, EngineError, ToolkitError


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    return write(read_checkpoint(save_hf(writable_model("gemma2", **BLOCKS), tmp_path / "source")), tmp_path, "int8")


def test_read_back_in_pytorch_a_float_file_is_the_checkpoint(tmp_path: Path, own_folders: Path) -> None:
    model = writable_model("gemma2")
    scorer = ReadBackScorer(write(read_checkpoint(save_hf(model, tmp_path / "source")), tmp_path))
    got = np.concatenate(list(scorer.score(TOKEN_IDS)))
    np.testing.assert_allclose(got, logits(model)[0], rtol=0, atol=1e-5)
    greedy = [int(row.argmax()) for row in got]
    assert scorer.count_greedy_equal(TOKEN_IDS, [greedy[-1]]) == 1
    assert scorer.count_greedy_equal(TOKEN_IDS, [greedy[-1] ^ 1, 0]) == 0


def test_both_ways_see_the_same_quantized_model(model_path: Path, own_folders: Path) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    here, there = (np.concatenate(list(scorer(model_path).score(TOKEN_IDS))) for scorer in (ReadBackScorer, LlamaCppScorer))
    assert 0 < np.abs(here - there).max() < 0.15  # llama.cpp's activations have 8 bits
    assert np.mean(here.argmax(-1) == there.argmax(-1)) > 0.7


def test_greedy_generation_in_llama_cpp_is_one_decode_a_token(model_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    scorer = LlamaCppScorer(model_path)
    answer: list[int] = []
    for _ in range(5):
        answer.append(int(np.concatenate(list(scorer.score(TOKEN_IDS + answer)))[-1].argmax()))
    assert scorer.count_greedy_equal(TOKEN_IDS, answer) == 5
    assert scorer.count_greedy_equal(TOKEN_IDS, [*answer[:3], answer[3] ^ 1, answer[4]]) == 3


def test_a_window_longer_than_the_cache_is_refused(model_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    with pytest.raises(ValueError, match="window of 1025 tokens, cache of 1024"):
        list(LlamaCppScorer(model_path).score([0] * 1025))


def test_llama_cpps_own_reason_is_passed_on(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    tensor = PlannedTensor("token_embd.weight", TYPES["F32"], (4, 8), 128, lambda: iter([bytes(128)]))
    write_gguf(tmp_path / "broken.gguf", {"general.architecture": "llama"}, [tensor])
    with pytest.raises(EngineError, match="llama.cpp refuses broken.gguf\n  why: .*error loading"):
        LlamaCppScorer(tmp_path / "broken.gguf")


def test_another_build_is_not_called(monkeypatch: pytest.MonkeyPatch, model_path: Path, own_folders: Path) -> None:
    monkeypatch.setattr(llama_cpp, "VERSION", "1.0")
    with pytest.raises(BackendUnavailableError, match="xllamacpp 1.0 is needed"):
        LlamaCppScorer(model_path)
    assert gguf_run.runtime_name().startswith("PyTorch")
    assert isinstance(gguf_run.open_scorer(model_path), ReadBackScorer)


def test_structures_laid_out_differently_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    shifted = [("moved", llama_cpp._INT), *llama_cpp._ContextParams._fields_]
    moved = type("Moved", (llama_cpp.ctypes.Structure,), {"_fields_": shifted})
    monkeypatch.setitem(llama_cpp._SIGNATURES, "llama_context_default_params", (moved, []))
    with pytest.raises(BackendUnavailableError, match="its structures are not those of"):
        llama_cpp.LlamaCpp()


def test_a_tensor_of_other_bytes_than_planned_leaves_no_file(tmp_path: Path) -> None:
    tensor = PlannedTensor("a", TYPES["F32"], (4, 8), 128, lambda: iter([bytes(64), bytes(60)]))
    with pytest.raises(ToolkitError, match="124 bytes came, 128 were planned"):
        write_gguf(tmp_path / "x.gguf", {"general.architecture": "llama"}, [tensor])
    assert list(tmp_path.iterdir()) == []
