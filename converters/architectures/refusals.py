"""What is refused by name, before any work, and what it would take. A wrong guess here would convert into nonsense."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolkit.errors import UnsupportedModelError

_MOE = "mixture-of-experts layers: a router and expert matmuls in every target, and a recipe rule for experts"
_GGUF = "its per-layer tables, shared KV layers and {} read from llama.cpp's names and layouts"
_GGUF_NEEDS: dict[str, str] = {"gemma3n": _GGUF.format("AltUp streams"), "gemma4": _GGUF.format("two head sizes")}
_NEEDS: dict[str, str] = {
    "gemma4unified": "an encoder-free vision part in the reader, and its text model checked in every target",
    "gemma4assistant": "a draft model beside the one it drafts for, which no target here takes",
    "mixtral": _MOE,
    "qwen2moe": _MOE,
    "qwen3moe": _MOE,
    "qwen3next": "gated linear attention and " + _MOE,
    "llama4": "chunked attention, a vision tower and " + _MOE,
    "gptoss": "attention sinks and " + _MOE,
    "olmoe": _MOE,
    "deepseek": "multi-head latent attention and " + _MOE,
    "phimoe": _MOE,
    "mamba": "state-space layers in every target",
}
_QAT = re.compile(r"(?:^|[^a-z0-9])qat(?:[^a-z0-9]|$)", re.IGNORECASE)


def refuse_unsupported_config(config: Mapping[str, Any], name: str) -> None:
    """Refuse a Hugging Face checkpoint that must not be taken for plain weights of a supported family.

    Raises:
        UnsupportedModelError: A named architecture, experts, a quantized checkpoint or quantization-aware training.
    """
    model_type = config.get("model_type")
    if isinstance(model_type, str):
        _refuse_known(model_type, name, _NEEDS)
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if isinstance(config.get(key), int) and config[key] > 1:
            raise _refusal(f"{name} is a mixture of {config[key]} experts", f"config.json says {key} {config[key]}", _MOE)
    quantization = config.get("quantization_config", config.get("quantization"))
    if quantization:
        method = quantization.get("quant_method", "unnamed") if isinstance(quantization, Mapping) else str(quantization)
        raise UnsupportedModelError(
            f"{name} is already quantized ({method})",
            why="config.json carries a quantization_config: its tensors hold packed codes, not weights",
            fix="use the float checkpoint it was made from; reading it would need that method's own unpacking",
        )
    _refuse_qat(name, str(config.get("_name_or_path", "")), str(config.get("qat", "") and "qat"))


def refuse_unsupported_gguf(metadata: Mapping[str, Any], name: str) -> None:
    """Refuse a GGUF file that is no whole, plain, supported language model.

    Raises:
        UnsupportedModelError: See `refuse_unsupported_config`; also adapters, projectors and split files.
    """
    architecture = str(metadata.get("general.architecture", ""))
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModelError(
            f"{name} is a GGUF {kind}, not a model", why=f"general.type is {kind!r}", fix="give the model's own GGUF file"
        )
    if isinstance(metadata.get("split.count"), int) and metadata["split.count"] > 1:
        raise UnsupportedModelError(
            f"{name} is one part of a split GGUF file",
            why=f"split.count is {metadata['split.count']}",
            fix=f"join the parts: llama-gguf-split --merge {name} joined.gguf",
        )
    _refuse_known(architecture, name, _NEEDS | _GGUF_NEEDS)
    n_experts = metadata.get(f"{architecture}.expert_count", 0)
    if isinstance(n_experts, int) and n_experts > 0:
        raise _refusal(f"{name} is a mixture of {n_experts} experts", f"{architecture}.expert_count is {n_experts}", _MOE)
    _refuse_qat(name, *(str(metadata.get(f"general.{key}", "")) for key in ("name", "basename", "finetune")))


def refuse_encoders(model_type: str, name: str) -> UnsupportedModelError:
    """The error for a multimodal checkpoint whose text model is asked for without a word about the rest."""
    return UnsupportedModelError(
        f"{name} is a {model_type} with vision and audio parts, which are not converted",
        why="its text model can be converted alone; a bundle would neither see nor hear",
        fix="leave those parts out with --encoders none",
    )


def _refuse_known(model_type: str, name: str, needed: Mapping[str, str]) -> None:
    plain = re.sub(r"[^a-z0-9]", "", model_type.lower())
    for known, needs in needed.items():
        if plain.startswith(known):
            raise _refusal(f"{name} is a {model_type}, which is not supported", f"its architecture is {model_type!r}", needs)


def _refuse_qat(*names: str) -> None:
    """Weights trained for one quantization grid lose that training on any other, and no recipe here is that grid."""
    for text in names:
        if _QAT.search(text):
            raise UnsupportedModelError(
                f"{names[0]} comes from quantization-aware training",
                why=f"{text!r} says so: its weights are trained for one rounding grid, and every recipe here rounds to another",
                fix="use the plain checkpoint of the same model; keeping the training would need a recipe on its exact grid",
            )


def _refusal(what: str, why: str, needs: str) -> UnsupportedModelError:
    return UnsupportedModelError(what, why=why, fix=f"use a dense Gemma, Llama or Qwen 2-3 checkpoint; support would need {needs}")
