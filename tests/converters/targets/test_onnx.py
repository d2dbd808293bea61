"""What the ONNX target refuses before any work, and one tiny conversion with nothing replaced."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.checkpoint import Checkpoint
from converters.cli import main
from converters.read import read_checkpoint
from converters.recipe import Recipe, load_recipe
from converters.recipe_file import read_recipe
from converters.targets import TARGETS, load_target
from converters.targets.base import ConvertOptions
from converters.targets.onnx import TARGET
from tests.converters.chat_templates import CHATML
from tests.converters.targets.onnx_models import greedy, onnx_model, onnx_source
from tests.converters.tiny_checkpoints import tiny_model, write_gguf
from toolkit import Bundle
from toolkit.cache import CACHE_VARIABLE
from toolkit.errors import BackendUnavailableError, FormatError, UnsupportedModelError, UsageError

OPTIONS = ConvertOptions(context_length=512)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ChatML llama of 320 tokens as a Hugging Face directory."""
    return onnx_source(onnx_model("llama-tied"), tmp_path_factory.mktemp("onnx") / "tiny-llama", CHATML.template)


@pytest.fixture(scope="module")
def checkpoint(source: Path) -> Checkpoint:
    return read_checkpoint(source)


@pytest.fixture(scope="module")
def published(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OUT after `convert tiny-llama --to onnx --recipe fp32,int8`."""
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        assert main([str(source), "--to", "onnx", "--recipe", "fp32,int8", "--context", "512", "--out", str(out)]) == 0
    return out


def test_both_bundles_are_published_with_their_figures(published: Path) -> None:
    fp32, int8 = (Bundle.open(published / f"tiny-llama-onnx-{recipe}").manifest for recipe in ("fp32", "int8"))
    assert fp32.fidelity is not None and int8.fidelity is not None
    assert fp32.fidelity.verdict == int8.fidelity.verdict == "pass"
    assert fp32.fidelity.n_tokens >= 2000 and fp32.fidelity.greedy_tokens_equal == 64
    assert fp32.fidelity.max_abs_logit_error <= 1e-3 < int8.fidelity.max_abs_logit_error
    assert fp32.bits_per_weight == 32.0 and int8.bits_per_weight == pytest.approx(8.56, abs=0.05)
    assert (fp32.entry, fp32.chat, fp32.context_length, fp32.stop_token_ids) == ("genai_config.json", True, 512, (261, 259))
    assert int8.tokenizer["verified_texts"] > 300 and int8.recipe["as_written"]["chat_template"]["verified_conversations"] > 10
    assert "onnxruntime-genai" in int8.tools


def test_the_runtimes_own_loop_goes_on_like_transformers_from_the_rendered_template(published: Path) -> None:
    """The bundle opened unchanged: its tokenizer, its template, its search options, its stop tokens."""
    import onnxruntime_genai as genai
    from transformers import AutoTokenizer

    folder = str(published / "tiny-llama-onnx-fp32")
    model = genai.Model(folder)
    tokenizer = genai.Tokenizer(folder)
    messages = [{"role": "user", "content": "the pump is warm"}]
    prompt = [
        int(token_id) for token_id in tokenizer.encode(tokenizer.apply_chat_template(json.dumps(messages), add_generation_prompt=True))
    ]
    reference = AutoTokenizer.from_pretrained(folder)
    assert prompt == reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=len(prompt) + 12)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(np.array(prompt, np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    made = [int(token_id) for token_id in generator.get_sequence(0)][len(prompt) :]
    wanted = greedy(onnx_model("llama-tied"), prompt, 12)
    stops = [wanted.index(token_id) for token_id in (261, 259) if token_id in wanted]
    assert [token_id for token_id in made if token_id not in (261, 259)] == wanted[: min(stops, default=12)]
    assert set(tokenizer.eos_token_ids) == {261, 259}


def test_the_context_is_the_runtimes_limit(published: Path) -> None:
    import onnxruntime_genai as genai

    model = genai.Model(str(published / "tiny-llama-onnx-int8"))
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=512)
    genai.Generator(model, parameters)
    parameters.set_search_options(max_length=513)
    with pytest.raises(RuntimeError, match="512"):
        genai.Generator(model, parameters)


def test_plain_onnxruntime_opens_the_graph_by_itself(published: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(published / "tiny-llama-onnx-int8" / "model.onnx"), providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_inputs()][:2] == ["input_ids", "attention_mask"]


def test_a_damaged_bundle_is_a_format_error_of_three_lines(published: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(published / "tiny-llama-onnx-int8", tmp_path / "copy"))
    data = bytearray((copy / "model.onnx.data").read_bytes())
    data[100_000] ^= 1
    (copy / "model.onnx.data").write_bytes(data)
    with pytest.raises(FormatError) as caught:
        Bundle.open(copy)
    assert str(caught.value).count("\n") == 2 and caught.value.exit_code == 4


def recipe_file(tmp_path: Path, name: str, rules: dict[str, str]) -> Recipe:
    body = "".join(f"[rules.{kind}]\n{rules.get(kind, rules['all'])}\n" for kind in ("embedding", "linear", "head"))
    path = tmp_path / "own.toml"
    path.write_text(f'name = "{name}"\ndescription = "a test"\n{body}')
    return read_recipe(path)


def blockwise(bits: int, group_size: int, symmetric: str = "true") -> str:
    return (
        f'bits = {bits}\nalgorithm = "round"\ngranularity = "blockwise"\ngroup_size = {group_size}\n'
        f'symmetric = {symmetric}\nactivations = "int8-dynamic"'
    )


def test_a_recipe_onnx_cannot_carry_out_is_refused_with_its_rule(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for recipe, said in (
        (load_recipe("int8-hadamard"), "[rules.embedding]: there is no rotation operator"),
        (recipe_file(tmp_path, "int3-g32", {"all": blockwise(3, 32)}), "3-bit weights"),
    ):
        with pytest.raises(UsageError, match="cannot be written for ONNX") as caught:
            TARGET.check(checkpoint, [recipe], OPTIONS)
        assert said in caught.value.why and caught.value.exit_code == 2


def test_a_group_that_does_not_divide_is_refused_with_its_tensor(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not fit model.embed_tokens.weight"):
        TARGET.check(checkpoint, [recipe_file(tmp_path, "int4-g64", {"all": blockwise(4, 64)})], OPTIONS)


def test_keeping_the_codes_of_a_float_checkpoint_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(UsageError, match="recipe keep does not fit") as caught:
        TARGET.check(checkpoint, [load_recipe("keep")], OPTIONS)
    assert "no codes to keep" in caught.value.why


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "phi3"}, "its model_type is phi3"),
        ({"activation": "relu"}, "its activation is relu"),
        ({"head_dim": 12}, "head_dim is 12"),
        ({"eos_token_ids": ()}, "no stop token"),
    ],
)
def test_a_checkpoint_the_builder_gets_wrong_is_refused_by_name(checkpoint: Checkpoint, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModelError, match="cannot be converted to ONNX") as caught:
        TARGET.check(replace(checkpoint, spec=replace(checkpoint.spec, **change)), [load_recipe("fp32")], OPTIONS)
    assert said in caught.value.why and caught.value.exit_code == 4


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxruntime-genai"])
def test_a_missing_library_names_the_extra(checkpoint: Checkpoint, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == missing:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(BackendUnavailableError, match="the onnx target cannot be used here") as caught:
        TARGET.check(checkpoint, [load_recipe("fp32")], OPTIONS)
    assert caught.value.exit_code == 5
    assert "ondevice-toolkit[convert,onnx]" in caught.value.fix and caught.value.why == f"{missing} is not installed"


def test_the_promise_of_each_recipe_is_the_size_of_its_codes_and_scales(checkpoint: Checkpoint) -> None:
    promised = {name: TARGET.promise(checkpoint, load_recipe(name)) for name in ("fp32", "fp16", "int8", "int4-g32")}
    assert promised["fp32"] == 32
    assert [promised[name] for name in ("fp16", "int8", "int4-g32")] == pytest.approx([16, 8.5, 4.5], rel=0.02)


def test_a_lean_conversion_needs_less_and_a_longer_context_more(checkpoint: Checkpoint) -> None:
    quick, lean, long = (
        TARGET.estimate(checkpoint, [], options)
        for options in (OPTIONS, replace(OPTIONS, is_lean=True), replace(OPTIONS, context_length=32768))
    )
    assert lean.peak_memory_bytes < quick.peak_memory_bytes < long.peak_memory_bytes
    assert lean.disk_bytes == quick.disk_bytes < long.disk_bytes


@pytest.mark.parametrize("recipe", ["int8", "keep"])
def test_a_recipe_that_fits_no_row_is_refused_with_what_does(recipe: str, tmp_path: Path) -> None:
    """int8 has groups of 32 in this format too, so it is no way out of rows that 32 does not divide."""
    source = read_checkpoint(onnx_source(onnx_model("llama", hidden_size=80, num_attention_heads=5, num_key_value_heads=1), tmp_path))
    with pytest.raises(UsageError, match=r"does not fit model\..* in ONNX") as caught:
        TARGET.check(source, [load_recipe(recipe)], OPTIONS)
    assert caught.value.fix.startswith("use fp16 or fp32") and caught.value.exit_code == 2
    assert TARGET.promise(source, load_recipe("fp16")) < TARGET.promise(source, load_recipe("fp32"))


def test_the_target_is_registered_under_its_name() -> None:
    assert load_target("onnx") is TARGET and TARGETS[TARGET.name] == "converters.targets.onnx"


@pytest.mark.parametrize("storage", ["Q4_1", "Q8_0"])
def test_a_quantized_gguf_goes_over_without_a_second_quantization(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    model = tiny_model("llama-tied", hidden_size=96, intermediate_size=160, head_dim=16, num_attention_heads=6, max_position_embeddings=512)
    path = write_gguf(model, tmp_path / "tiny.gguf", storage=storage, metadata={"tokenizer.ggml.merges": ["t h", "th e", "Ġ Ġ"]})
    arguments = [str(path), "--to", "onnx", "--recipe", "keep", "--context", "512", "--max-kl", "1e-3", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    manifest = Bundle.open(tmp_path / "out" / "tiny-onnx-keep").manifest
    assert manifest.fidelity is not None and 0 < manifest.fidelity.kl_mean < 1e-3
    assert manifest.bits_per_weight == pytest.approx(5.0 if storage == "Q4_1" else 8.5, rel=0.02)
