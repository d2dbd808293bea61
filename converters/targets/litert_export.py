"""Lowering a Hugging Face directory to one float .tflite, in a process of its own.

litert-torch does the lowering. Around it this module arranges three things: no TensorFlow is needed, the KV cache is
dynamic (one file serves every context length), and one more signature, `score_N`, gives the logits of every position,
so that a written file can be checked against its checkpoint at prompt speed instead of one token a step.
"""

from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from converters.freed_memory import give_back_memory
from converters.targets.litert_gemma3n import restore_cutoffs
from converters.targets.litert_gemma4 import allow_experts_to_be_set
from converters.targets.litert_signatures import add_signature_without
from converters.targets.mapped_weights import kept_on_disk, map_weights

SCORE_LENGTH = 128
FLOAT_MODEL = "model.tflite"


def score_signature(length: int = SCORE_LENGTH) -> str:
    """Name of the signature that returns logits for each of `length` positions."""
    return f"score_{length}"


def stand_in_for_tensorflow() -> None:
    """Let litert-torch import `tensorflow.lite.python.schema_py_generated`, the only part of TensorFlow it asks for.

    ai-edge-litert ships the same generated schema; the three parent packages are empty modules. Does nothing where
    TensorFlow is already imported.
    """
    if "tensorflow" in sys.modules:
        return
    from ai_edge_litert import schema_py_generated

    for name in ("tensorflow", "tensorflow.lite", "tensorflow.lite.python"):
        module = types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        sys.modules[name] = module
    vars(sys.modules["tensorflow.lite.python"])["schema_py_generated"] = schema_py_generated
    sys.modules["tensorflow.lite.python.schema_py_generated"] = schema_py_generated


def export_float(hf_dir: str, out_dir: str, prefill_lengths: list[int], context_length: int) -> dict[str, Any]:
    """Write `model.tflite` (float32 weights) into `out_dir`.

    Signatures: `prefill_N` for each prefill length, `score_128`, `decode`. Inputs of each: tokens (1, n) int32,
    input_pos (n) int32, mask (1, 1, n, cache_length) float32 added to the attention scores, and the KV cache.

    Args:
        hf_dir: Directory transformers loads: config.json, float32 safetensors, tokenizer.
        out_dir: Existing folder.
        prefill_lengths: Prompt chunk lengths, shortest first.
        context_length: Least number of positions the KV cache holds; the converter rounds it up to a prime, which
            marks the axis as resizable for the runtime.

    Returns:
        {"model": path, "cache_length": positions}.
    """
    stand_in_for_tensorflow()
    from litert_torch.generative.export_hf.core import export_lib
    from litert_torch.generative.export_hf.core.exportable_module_config import ExportableModuleConfig, ExportTask

    config = ExportableModuleConfig(
        model=hf_dir,
        output_dir=out_dir,
        work_dir=out_dir,
        task=ExportTask.TEXT_GENERATION,
        prefill_lengths=[length for length in prefill_lengths if length != SCORE_LENGTH],
        cache_length=context_length,
        enable_gpu_dynamic_cache=True,
        experimental_lightweight_conversion=True,
    )
    allow_experts_to_be_set()
    source = export_lib.load_model(hf_dir, config, task=ExportTask.TEXT_GENERATION)
    restore_cutoffs(source.model)
    config = export_lib.update_export_config(config, source)
    weights = map_weights(source.model, Path(hf_dir) / "model.safetensors")
    path = Path(out_dir) / FLOAT_MODEL
    with kept_on_disk(weights):
        lowered = _lowered(source, config)
        del source  # its tokenizer and modules, before writing needs twice the weights
        if SCORE_LENGTH in prefill_lengths:
            module = lowered._exporter.module
            add_signature_without(module, source=score_signature(), output="logits", name=f"prefill_{SCORE_LENGTH}")
        give_back_memory()
        lowered.export(str(path))
    return {"model": str(path), "cache_length": int(config.cache_length)}


def _lowered(source: Any, config: Any) -> Any:
    """The lowered module of all traced signatures; nothing of the torch model but its weights is needed afterwards."""
    from litert_torch.generative.export_hf.model_ext import patches

    with patches.patch_model(source.model, source.text_model_config.model_type, config):
        source.model.set_attn_implementation("lrt_transposed_attention")
        return _convert(_signatures(source, config))


def _signatures(source: Any, config: Any) -> list[tuple[str, Any, dict[str, Any]]]:
    """(name, module, sample inputs) of each entry point, in the order they are stored."""
    import dataclasses

    from litert_torch.generative.export_hf.core import export_lib

    prefill_class, decode_class = export_lib.get_prefill_decode_exportable_cls(source.model_config, config)
    score_config = dataclasses.replace(config, prefill_lengths=[SCORE_LENGTH])
    score_config.cache_length = config.cache_length
    modules = [
        ({}, prefill_class(source.model, config, source)),
        ({f"prefill_{SCORE_LENGTH}": score_signature()}, _score_class(prefill_class)(source.model, score_config, source)),
        ({}, decode_class(source.model, config, source)),
    ]
    return [
        (renamed.get(name, name), module.eval(), inputs)
        for renamed, module in modules
        for name, (inputs, _) in module.get_sample_inputs(source.text_model_config).items()
    ]


def _score_class(prefill_class: type) -> type:
    """A prefill module that also returns the logits of all its positions, (1, n_tokens, vocab_size)."""

    class Score(prefill_class):  # type: ignore[misc]
        def forward(self, tokens: Any, input_pos: Any, kv_cache: Any, mask: Any) -> dict[str, Any]:
            inputs = self.adapt_inputs(tokens, None, input_pos, kv_cache, mask)
            inputs |= self.attention_kwargs() | {"prefill_logits": True}
            output = self.model(**inputs)
            return {"kv_cache": output.past_key_values, "logits": output.logits.float()}

    return Score


def _convert(signatures: list[tuple[str, Any, dict[str, Any]]]) -> Any:
    from litert_torch._convert import interface
    from litert_torch.generative.export_hf.core import export_lib
    from litert_torch.generative.export_hf.core.mu import mu_pass_lib

    converter = interface.Converter()
    for name, module, inputs in signatures:
        converter.add_signature(name, module, sample_kwargs=inputs)
    with export_lib.patch_builtin_tuple_for_export():
        lowered = converter.convert(lightweight_conversion=True, strict_export=False)
    return mu_pass_lib.update_model(lowered)
