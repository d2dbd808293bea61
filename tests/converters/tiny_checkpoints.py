"""Tiny random checkpoints in both source formats, written by transformers and gguf-py, never by the code under test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

N_LAYERS = 4
VOCAB = 320
# Every size differs from every other, so that a mixed-up axis cannot pass.
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# One config for each trap; `rope_parameters` is spelled as transformers 5 does.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama-bias": {"model_type": "llama", "attention_bias": True},
    "llama-3.2": {"model_type": "llama", "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 500000.0, **LLAMA3}},
    "llama-linear": {"model_type": "llama", "rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0}},
    "qwen2": {"model_type": "qwen2", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "head_dim": 8},
    "qwen2-sliding": {"model_type": "qwen2", "head_dim": 8, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "gemma": {"model_type": "gemma"},
    "gemma2": {"model_type": "gemma2", "sliding_window": 5, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 2.0},
    "gemma3": {"model_type": "gemma3_text", "sliding_window": 5, "query_pre_attn_scalar": 20, "sliding_window_pattern": 3},
    "gemma3-linear": {
        "model_type": "gemma3_text",
        "sliding_window": 5,
        "sliding_window_pattern": 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}


def tiny_model(name: str, **changes: Any) -> Any:
    """A transformers model of `CONFIGS[name]` with random weights, norms and biases included."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    data = SHAPE | CONFIGS[name] | changes
    config = AutoConfig.for_model(data["model_type"], **{key: value for key, value in data.items() if key != "model_type"})
    torch.manual_seed(20261130)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    return model


def logits(model: Any) -> np.ndarray:
    """(1, 24, vocab) float32: longer than any window above."""
    import torch

    token_ids = torch.arange(24)[None] * 11 % VOCAB
    with torch.no_grad():
        result: np.ndarray = model(token_ids).logits.numpy()
    return result


def load_hf(directory: Path) -> Any:
    """The model transformers finds in a directory."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def save_hf(model: Any, directory: Path, **options: Any) -> Path:
    """What `save_pretrained` writes, and a tokenizer."""
    model.save_pretrained(directory, **options)
    write_tokenizer(directory, model.config.vocab_size)
    return directory


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """A byte-level BPE tokenizer.json: 256 bytes, two merges, three control tokens."""
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(259 + i, text) for i, text in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": byte_vocabulary(), "merges": [["t", "h"], ["th", "e"]]},
    }
    assert vocab_size > 262
    (directory / "tokenizer.json").write_text(json.dumps(data), "utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}), "utf-8")


def byte_vocabulary() -> dict[str, int]:
    """GPT-2's 256 printable stand-ins for bytes, then `th`, `the` and `Ġ` twice."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    texts = [*bytes_to_unicode().values(), "th", "the", "ĠĠ"]
    return {text: token_id for token_id, text in enumerate(texts)}


def _added(token_id: int, text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": text, **flags, "special": True}


def write_gguf(model: Any, path: Path, *, storage: str = "F32", metadata: Mapping[str, Any] | None = None) -> Path:
    """The model as llama.cpp's converter would store it: its names, its q/k permutation, its 1 + norm weights."""
    import gguf

    config = model.config
    architecture = {"gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[architecture], config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(_head_dim(config))
    writer.add_value_length(_head_dim(config))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    _add_rope(writer, config)
    _add_gemma(writer, config, architecture)
    _add_tokenizer(writer)
    for key, value in (metadata or {}).items():
        _replace(writer, key, value)
    for hf_name, parameter in model.state_dict().items():
        if hf_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, suffix = hf_name.rpartition(".")
        array = _as_stored(parameter.numpy(), hf_name, config)
        kind = gguf.GGMLQuantizationType[storage if array.ndim == 2 else "F32"]
        writer.add_tensor(f"{names.get_name(stem)}.{suffix}", gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _as_stored(array: np.ndarray, hf_name: str, config: Any) -> np.ndarray:
    if config.model_type.startswith("gemma") and "norm" in hf_name:
        return (array + 1).astype(np.float32)
    if config.model_type == "llama" and (".q_proj." in hf_name or ".k_proj." in hf_name):
        n_heads = config.num_attention_heads if ".q_proj." in hf_name else config.num_key_value_heads
        halves = array.reshape(n_heads, 2, array.shape[0] // n_heads // 2, *array.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
    return array


def _add_rope(writer: Any, config: Any) -> None:
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_string(f"{writer.arch}.rope.scaling.type", "linear")
        writer.add_float32(f"{writer.arch}.rope.scaling.factor", rope["factor"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _rope_factors(rope, _head_dim(config)))


def _rope_factors(rope: Mapping[str, Any], head_dim: int) -> np.ndarray:
    """llama.cpp's loop, one frequency at a time."""
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (i / head_dim)
        if wavelength < rope["original_max_position_embeddings"] / rope["high_freq_factor"]:
            factors.append(1.0)
        elif wavelength > rope["original_max_position_embeddings"] / rope["low_freq_factor"]:
            factors.append(rope["factor"])
        else:
            smooth = rope["original_max_position_embeddings"] / wavelength - rope["low_freq_factor"]
            smooth /= rope["high_freq_factor"] - rope["low_freq_factor"]
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def _add_gemma(writer: Any, config: Any, architecture: str) -> None:
    if architecture in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
        writer.add_uint32(f"{architecture}.attention.sliding_window_pattern", config.layer_types.index("full_attention") + 1)
    if architecture == "gemma2":
        writer.add_float32("gemma2.attn_logit_softcapping", config.attn_logit_softcapping)
        writer.add_float32("gemma2.final_logit_softcapping", config.final_logit_softcapping)


def _add_tokenizer(writer: Any) -> None:
    vocabulary = byte_vocabulary()
    texts = [*vocabulary, "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(texts)
    writer.add_token_types([1] * len(vocabulary) + [3] * 3)
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(260)
    writer.add_eos_token_id(261)


def _replace(writer: Any, key: str, value: Any) -> None:
    """Set a key, whatever it was; None removes it."""
    import gguf

    writer.kv_data[0].pop(key, None)
    kinds = gguf.GGUFValueType
    kind_of = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING}
    if isinstance(value, list):
        writer.add_array(key, value)
    elif value is not None:
        writer.add_key_value(key, value, kind_of[type(value)])
