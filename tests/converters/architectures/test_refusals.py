"""Sound models that must not be converted: refused by name, saying what support would need."""

from typing import Any

import pytest

from converters.architectures.refusals import refuse_unsupported_config, refuse_unsupported_gguf
from toolkit.errors import UnsupportedModelError

CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "gemma 4 unified": ({"model_type": "gemma4_unified"}, "encoder-free vision"),
    "gemma 4 assistant": ({"model_type": "gemma4_assistant"}, "draft model"),
    "gemma 4 with experts": ({"model_type": "gemma4_text", "enable_moe_block": True, "num_experts": 8}, "router"),
    "mixtral": ({"model_type": "mixtral"}, "router"),
    "qwen2 moe": ({"model_type": "qwen2_moe"}, "router"),
    "qwen3 moe": ({"model_type": "qwen3_moe"}, "router"),
    "llama with experts": ({"model_type": "llama", "num_local_experts": 8}, "router"),
    "gptq": ({"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}}, "float checkpoint"),
    "awq": ({"model_type": "qwen2", "quantization_config": {"quant_method": "awq"}}, "float checkpoint"),
    "bitsandbytes": ({"model_type": "llama", "quantization_config": {"load_in_4bit": True}}, "float checkpoint"),
    "mlx": ({"model_type": "llama", "quantization": {"group_size": 64, "bits": 4}}, "float checkpoint"),
    "qat by path": ({"model_type": "gemma3_text", "_name_or_path": "google/gemma-3-1b-it-qat-q4_0-unquantized"}, "exact grid"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_config_is_refused_and_says_what_it_would_take(case: str) -> None:
    config, needs = CONFIGS[case]
    with pytest.raises(UnsupportedModelError) as refusal:
        refuse_unsupported_config(config, "some-model")
    assert refusal.value.exit_code == 4
    assert str(refusal.value).startswith("some-model ")
    assert needs in refusal.value.fix
    assert len(str(refusal.value).splitlines()) == 3


@pytest.mark.parametrize("name", ["gemma-3-1b-it-qat-q4_0-gguf", "model_QAT", "QAT.gemma"])
def test_a_qat_name_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="quantization-aware training"):
        refuse_unsupported_config({"model_type": "gemma3_text"}, name)


@pytest.mark.parametrize("name", ["gemma-3-1b-it", "qatar-news-llama", "aqatic", "smollm2-135m-instruct"])
def test_plain_models_are_not_refused(name: str) -> None:
    refuse_unsupported_config({"model_type": "llama", "num_local_experts": 1, "quantization_config": None}, name)
    refuse_unsupported_gguf({"general.architecture": "llama", "llama.expert_count": 0, "general.name": name}, name)


GGUF: dict[str, tuple[dict[str, Any], str]] = {
    "gemma3n": ({"general.architecture": "gemma3n"}, "AltUp"),
    "gemma4": ({"general.architecture": "gemma4"}, "two head sizes"),
    "qwen3moe": ({"general.architecture": "qwen3moe"}, "router"),
    "mixtral": ({"general.architecture": "llama", "llama.expert_count": 8}, "router"),
    "lora": ({"general.architecture": "llama", "general.type": "adapter"}, "model's own GGUF"),
    "projector": ({"general.architecture": "clip", "general.type": "mmproj"}, "model's own GGUF"),
    "one part of several": ({"general.architecture": "llama", "split.count": 3}, "llama-gguf-split --merge"),
    "qat": ({"general.architecture": "gemma3", "general.name": "Gemma 3 1b It Qat"}, "exact grid"),
}


@pytest.mark.parametrize("case", GGUF)
def test_gguf_is_refused_and_says_what_it_would_take(case: str) -> None:
    metadata, needs = GGUF[case]
    with pytest.raises(UnsupportedModelError) as refusal:
        refuse_unsupported_gguf(metadata, "some.gguf")
    assert needs in refusal.value.fix
