"""Tiny random Gemma 3n and Gemma 4 text models, written by transformers. Rows are multiples of 32: MLX quantizes no others."""

from __future__ import annotations

from typing import Any

from tests.converters.tiny_checkpoints import VOCAB

_TYPES = ["sliding_attention", "full_attention"]
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "sliding_window": 5,
    "layer_types": _TYPES * 3,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 32,
    "final_logit_softcapping": 3.0,
}
_PARTLY = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e6}
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma3n": {
        "model_type": "gemma3n_text",
        "intermediate_size": [96, 128, 96, 96, 96, 128],
        "vocab_size_per_layer_input": VOCAB - 20,  # the last tokens take row 0
        "laurel_rank": 32,
        "altup_num_inputs": 4,
        "altup_coef_clip": 5.0,
        "activation_sparsity_pattern": [0.6, 0.8, 0.0, 0.0, 0.0, 0.0],
    },
    "gemma4": {
        "model_type": "gemma4_text",
        "vocab_size_per_layer_input": VOCAB,
        "global_head_dim": 32,
        "use_double_wide_mlp": True,
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": _PARTLY},
    },
    "gemma4-dense": {
        "model_type": "gemma4_text",
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": VOCAB,
        "num_kv_shared_layers": 0,
        "global_head_dim": 32,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": _PARTLY},
    },
}


def tiny_gemma(name: str, **changes: Any) -> Any:
    """A transformers model of `CONFIGS[name]` with random weights; norms and layer scalars are random around 1."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    data = _SHAPE | CONFIGS[name] | changes
    config = AutoConfig.for_model(data["model_type"], **{key: value for key, value in data.items() if key != "model_type"})
    torch.manual_seed(20261130)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    randomize(model)
    return model


def randomize(model: Any) -> None:
    """Random weights everywhere; vectors around 1, as they multiply."""
    import torch

    scalars = [buffer for name, buffer in model.named_buffers() if name.endswith("layer_scalar")]
    with torch.no_grad():
        for tensor in (*model.parameters(), *scalars):
            noise = torch.randn_like(tensor) * 0.2
            tensor.copy_(noise + 1 if tensor.ndim == 1 else noise)
