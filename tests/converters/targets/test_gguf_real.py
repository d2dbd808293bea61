"""SmolLM2 as a GGUF source, written as GGUF again: nothing is lost on the way, and llama.cpp answers from the file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from converters.read import read_checkpoint
from converters.read.gguf_header import read_gguf_header
from converters.recipe import load_recipe
from converters.targets.base import ConvertOptions
from converters.targets.gguf import GgufTarget
from tests.converters.targets.gguf_files import write

pytestmark = pytest.mark.real


def test_keep_is_the_same_weights_and_the_same_tokenizer(smollm2_gguf: Path, tmp_path: Path) -> None:
    source = read_checkpoint(smollm2_gguf)
    path = write(source, tmp_path, "keep")
    want, got = read_gguf_header(smollm2_gguf), read_gguf_header(path)
    assert set(want.tensors) == set(got.tensors)
    with smollm2_gguf.open("rb") as before, path.open("rb") as after:
        for name, tensor in want.tensors.items():
            twin = got.tensors[name]
            before.seek(tensor.offset), after.seek(twin.offset)
            assert (twin.type, before.read(tensor.n_bytes)) == (tensor.type, after.read(twin.n_bytes))
    for key, value in want.metadata.items():
        if key.startswith(("tokenizer.", "llama.")):
            assert np.array_equal(got.metadata[key], value), key


def test_floats_through_a_checkpoint_are_exact(smollm2_gguf: Path, tmp_path: Path) -> None:
    source = read_checkpoint(smollm2_gguf)
    again = read_checkpoint(write(source, tmp_path, "fp32"))
    for name in source.tensors.names():
        np.testing.assert_array_equal(again.tensors.load(name), source.tensors.load(name))
    assert again.spec == source.spec
    assert again.tokenizer.tokenizer_json == source.tokenizer.tokenizer_json


def test_llama_cpp_agrees_on_tokenizer_and_template_and_answers(smollm2_gguf: Path, tmp_path: Path) -> None:
    xllamacpp = pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    source = read_checkpoint(smollm2_gguf)
    GgufTarget().check(source, [load_recipe("fp16")], ConvertOptions())
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = str(write(source, tmp_path, "fp16")), 512, 1, False
    question = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 16, "temperature": 0}
    answer = xllamacpp.Server(params).handle_chat_completions(question)["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == ("The capital of France is Paris.", "stop")
