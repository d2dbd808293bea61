"""genai_config.json: what onnxruntime-genai is told of a model beside its graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from converters.spec import ModelSpec

CONFIG_NAME = "genai_config.json"
GRAPH_NAME = "model.onnx"


def genai_config(spec: ModelSpec, context_length: int) -> dict[str, Any]:
    """The config of a graph as `onnx_build` makes it: input names as there, every stop token, and the context as asked for.

    Generation is greedy unless the caller says otherwise. Past and present KV cache share a buffer of `context_length` tokens
    at most, which is what `GroupQueryAttention` was made for.
    """
    stop = list(spec.eos_token_ids)
    model: dict[str, Any] = {
        "type": spec.model_type,
        "context_length": context_length,
        "vocab_size": spec.vocab_size,
        "eos_token_id": stop,
        "pad_token_id": stop[0] if spec.pad_token_id is None else spec.pad_token_id,
        "decoder": {
            "filename": GRAPH_NAME,
            "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
            "hidden_size": spec.hidden_size,
            "head_size": spec.head_dim,
            "num_attention_heads": spec.n_heads,
            "num_key_value_heads": spec.n_kv_heads,
            "num_hidden_layers": spec.n_layers,
            "inputs": {
                "input_ids": "input_ids",
                "attention_mask": "attention_mask",
                "past_key_names": "past_key_values.%d.key",
                "past_value_names": "past_key_values.%d.value",
            },
            "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
        },
    }
    if spec.bos_token_id is not None:
        model["bos_token_id"] = spec.bos_token_id
    return {"model": model, "search": {"do_sample": False, "max_length": context_length, "past_present_share_buffer": True}}
