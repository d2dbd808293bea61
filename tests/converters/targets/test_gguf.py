"""A checkpoint written as GGUF is the same model: to this project's reader, and to llama.cpp."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from converters.checkpoint import Checkpoint
from converters.cli import main
from converters.read import read_checkpoint
from converters.read.gguf_header import GgufTensor, read_gguf_header
from converters.recipe import load_recipe
from converters.targets import llama_cpp
from converters.targets.base import ConvertOptions, Workshop
from converters.targets.gguf import GgufTarget
from tests.converters.targets.gguf_files import BLOCKS, WRITABLE, llama_logits, writable_checkpoint, writable_model, write
from tests.converters.tiny_checkpoints import logits, save_hf, write_gguf
from toolkit import Bundle
from toolkit.errors import UsageError

# llama.cpp looks Gemma's GELU up in a table of float16 values; everything else is float32.
TOLERANCE = {"gemma": 5e-3, "other": 2e-6}


def is_gemma(name: str) -> bool:
    return name.startswith("gemma")


def raw(path: Path, tensor: GgufTensor) -> bytes:
    return path.read_bytes()[tensor.offset : tensor.offset + tensor.n_bytes]


@pytest.mark.parametrize("name", WRITABLE)
def test_a_written_file_read_again_is_the_same_checkpoint(name: str, tmp_path: Path) -> None:
    source = writable_checkpoint(name, tmp_path)
    again = read_checkpoint(write(source, tmp_path))
    assert again.tensors.names() == source.tensors.names()
    for tensor in source.tensors.names():
        want, got = source.tensors.load(tensor), again.tensors.load(tensor)
        if is_gemma(name) and tensor.endswith("norm.weight"):  # stored as 1 + weight in float32
            np.testing.assert_allclose(got, want, rtol=0, atol=1.2e-7)
        else:
            np.testing.assert_array_equal(got, want)
    want_spec, got_spec = asdict(source.spec), asdict(again.spec)
    assert got_spec.pop("norm").pop("eps") == pytest.approx(want_spec.pop("norm").pop("eps"), rel=1e-7)
    assert got_spec == want_spec
    assert (again.chat_template, again.tokenizer.add_bos) == (source.chat_template, source.tokenizer.add_bos)


@pytest.mark.parametrize("name", WRITABLE)
def test_llama_cpp_computes_the_same_model(name: str, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    model = writable_model(name)
    path = write(read_checkpoint(save_hf(model, tmp_path / "source")), tmp_path)
    np.testing.assert_allclose(llama_logits(path), logits(model)[0], rtol=0, atol=TOLERANCE["gemma" if is_gemma(name) else "other"])


# what is broken: (model, the key of the file or the function, what it says then; None leaves it out)
MUTANTS: dict[str, tuple[str, str, float | None]] = {
    "q and k left in Hugging Face's order": ("llama", "to_gguf", None),
    "norms without the 1": ("gemma3", "to_gguf", None),
    "RoPE base of sliding layers": ("gemma3", "gemma3.rope.freq_base_swa", 100.0),
    "RoPE base": ("qwen3", "qwen3.rope.freq_base", None),
    "linear scaling": ("llama-linear", "llama.rope.scaling.factor", None),
    "window": ("gemma2", "gemma2.attention.sliding_window", None),
    "window pattern": ("gemma3", "gemma3.attention.sliding_window_pattern", None),
    "softcap of scores": ("gemma2", "gemma2.attn_logit_softcapping", None),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_is_broken_shows_in_llama_cpps_logits(mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    from converters.architectures import family_of
    from converters.targets import gguf

    name, broken, value = MUTANTS[mutant]
    model = writable_model(name)
    source = read_checkpoint(save_hf(model, tmp_path / "source"))
    if broken == "to_gguf":
        monkeypatch.setattr(family_of(source.spec.model_type), "to_gguf", lambda hf_name, array, spec: array)
    else:
        keys = gguf.model_metadata(source.spec)
        del keys[broken]
        monkeypatch.setattr(gguf, "model_metadata", lambda spec: keys if value is None else {**keys, broken: value})
    assert np.abs(llama_logits(write(source, tmp_path)) - logits(model)[0]).max() > 2 * TOLERANCE["gemma"]


@pytest.mark.parametrize("name", ["llama", "llama-3.2", "llama-bias", "gemma3", "qwen2"])
def test_a_gguf_file_through_a_checkpoint_is_the_same_file_again(name: str, tmp_path: Path) -> None:
    source = write_gguf(writable_model(name), tmp_path / "source.gguf")
    again = write(read_checkpoint(source), tmp_path)
    want, got = read_gguf_header(source), read_gguf_header(again)
    assert set(got.tensors) == set(want.tensors)
    for tensor in want.tensors.values():
        twin = got.tensors[tensor.name]
        assert (twin.type, twin.shape) == (tensor.type, tensor.shape)
        values = [np.frombuffer(raw(path, each), "<f4") for path, each in ((source, tensor), (again, twin))]
        # 1 + weight - 1 + 1: equal but for norms below one half, whose last bits a norm around zero does not have
        np.testing.assert_allclose(values[1], values[0], rtol=0, atol=1.2e-7 if is_gemma(name) and "norm" in tensor.name else 0)
    for key, value in want.metadata.items():
        if key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):  # llama.cpp wants one for every row of the embeddings
            assert list(got.metadata[key][: len(value)]) == list(value)
            assert len(got.metadata[key]) == 320
        elif key.startswith(("tokenizer.", f"{want.metadata['general.architecture']}.")):
            assert np.array_equal(got.metadata[key], value), key


@pytest.mark.parametrize(("recipe", "kind", "bits"), [("fp16", "F16", 16), ("int8", "Q8_0", 8.5), ("int4-g32", "Q4_0", 4.5)])
def test_blocks_are_those_of_gguf_py_and_cost_what_was_promised(recipe: str, kind: str, bits: float, tmp_path: Path) -> None:
    import gguf

    source = writable_checkpoint("llama", tmp_path, **BLOCKS)
    path = write(source, tmp_path, recipe)
    header = read_gguf_header(path)
    matrices = {tensor.type.name for tensor in header.tensors.values() if len(tensor.shape) == 2}
    assert matrices == {kind}
    assert {tensor.type.name for tensor in header.tensors.values() if len(tensor.shape) == 1} == {"F32"}
    tensor = header.tensors["blk.1.ffn_down.weight"]
    weight = source.tensors.load("model.layers.1.mlp.down_proj.weight")
    assert raw(path, tensor) == gguf.quants.quantize(weight, gguf.GGMLQuantizationType[kind]).tobytes()
    promised = GgufTarget().promise(source, load_recipe(recipe))
    n_bits = sum(8 * each.n_bytes for each in header.tensors.values())
    assert promised == n_bits / source.spec.n_parameters
    assert bits < promised < bits + 0.1


def test_keep_copies_the_source_byte_for_byte(tmp_path: Path) -> None:
    source = write_gguf(writable_model("gemma3", **BLOCKS), tmp_path / "source.gguf", storage="Q5_1")
    path = write(read_checkpoint(source), tmp_path, "keep")
    want, got = read_gguf_header(source), read_gguf_header(path)
    assert set(want.tensors) == set(got.tensors)
    for name, tensor in want.tensors.items():
        twin = got.tensors[name]
        assert twin.type == tensor.type
        assert (
            path.read_bytes()[twin.offset : twin.offset + twin.n_bytes]
            == source.read_bytes()[tensor.offset : tensor.offset + tensor.n_bytes]
        )


def test_keep_of_a_float_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    source = writable_checkpoint("llama", tmp_path)
    with pytest.raises(UsageError, match="recipe keep cannot be written for GGUF from source\n.*keeps the blocks of a GGUF file"):
        GgufTarget().check(source, [load_recipe("keep")], ConvertOptions(128))


def test_rows_that_are_no_whole_blocks_are_refused_by_name(tmp_path: Path) -> None:
    source = writable_checkpoint("llama", tmp_path)  # 4 heads of 12
    with pytest.raises(UsageError, match=r"does not fit model.layers.0.self_attn.o_proj.weight\n.*multiple of 32 weights, found 48"):
        GgufTarget().check(source, [load_recipe("int8")], ConvertOptions(128))


def test_lowering_writes_a_small_file_of_facts(tmp_path: Path) -> None:
    source = writable_checkpoint("llama", tmp_path)
    facts = GgufTarget().lower(source, ConvertOptions(128), tmp_path, Workshop())
    assert facts.stat().st_size < 4096
    assert json.loads(facts.read_text())["metadata"]["llama.block_count"] == 4


def chat_checkpoint(tmp_path: Path) -> Checkpoint:
    template = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    return replace(writable_checkpoint("llama-tied", tmp_path, **BLOCKS), chat_template=template)


def test_a_bundle_says_what_was_written_and_what_measured_it(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    source, target, recipe = chat_checkpoint(tmp_path), GgufTarget(), load_recipe("int8")
    model = write(source, tmp_path, "int8")
    (tmp_path / "bundle").mkdir()
    assembled = target.assemble(source, model, recipe, ConvertOptions(128), tmp_path / "bundle")
    assert (tmp_path / "bundle" / "model.gguf").read_bytes() == model.read_bytes()
    assert (assembled.entry, assembled.chat, assembled.chat_template) == ("model.gguf", True, source.chat_template)
    assert assembled.bits_per_weight == pytest.approx(target.promise(source, recipe))
    assert assembled.tokenizer["verified_texts"] > 300
    assert assembled.as_written["chat_template"] == {"verified_conversations": 23}
    assert assembled.as_written["verified_with"].startswith("llama.cpp")
    assert assembled.as_written["rules"]["linear"].startswith("Q8_0")
    assert set(assembled.as_written["weights_by_type"]) == {"Q8_0", "F32"}
    assert read_gguf_header(model).metadata["tokenizer.chat_template"] == source.chat_template


def test_an_unverified_bundle_names_no_runtime_it_was_measured_with(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    source, target = chat_checkpoint(tmp_path), GgufTarget()
    model = write(source, tmp_path, "int8")
    (tmp_path / "bundle").mkdir()
    assembled = target.assemble(source, model, load_recipe("int8"), ConvertOptions(128, is_verified=False), tmp_path / "bundle")
    assert "verified_with" not in assembled.as_written


@pytest.mark.parametrize("is_native", [True, False])
def test_reading_back_in_pytorch_is_counted_and_only_where_it_happens(
    is_native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_cpp, "is_available", lambda: is_native)
    source, target, both = writable_checkpoint("llama", tmp_path), GgufTarget(), [load_recipe("fp32"), load_recipe("fp16")]
    quick, lean, unverified = (
        target.estimate(source, both, ConvertOptions(128, **options)) for options in ({}, {"is_lean": True}, {"is_verified": False})
    )
    weights = 4 * source.spec.n_parameters
    assert lean.peak_memory_bytes < quick.peak_memory_bytes and unverified.peak_memory_bytes < quick.peak_memory_bytes
    read_back = [each.verify_disk_bytes for each in (quick, lean, unverified)]
    assert read_back == ([0, 0, 0] if is_native else [2 * weights, weights, 0])


def test_one_command_publishes_measured_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_folders: Path) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'ondevice-toolkit[gguf]'")
    folder = tmp_path / "tiny-llama"
    save_hf(writable_model("llama-tied", **BLOCKS | {"max_position_embeddings": 1024}), folder)
    assert main([str(folder), "--to", "gguf", "--recipe", "fp32,int8", "--context", "256", "--out", str(tmp_path / "out")]) == 0
    fp32, int8 = (Bundle.open(tmp_path / "out" / f"tiny-llama-gguf-{recipe}").manifest.fidelity for recipe in ("fp32", "int8"))
    assert fp32 is not None and int8 is not None
    assert fp32.max_abs_logit_error < 1e-4
    assert fp32.greedy_tokens_equal == 64
    assert 0 < int8.kl_mean < 0.01
    assert int8.kl_mean > 100 * abs(fp32.kl_mean)
