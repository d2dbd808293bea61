"""Model families: one file each, found by the `model_type` of a config or the architecture of a GGUF file.

To add one, write a module that offers what `base.Family` lists, and a line in each registry that applies.
"""

from __future__ import annotations

import importlib
from typing import cast

from converters.architectures.base import Family
from toolkit.errors import UnsupportedModelError

FAMILIES: dict[str, str] = {
    "gemma": "converters.architectures.gemma",
    "gemma2": "converters.architectures.gemma",
    "gemma3_text": "converters.architectures.gemma",
    "gemma3n_text": "converters.architectures.gemma3n",
    "gemma4_text": "converters.architectures.gemma4",
    "llama": "converters.architectures.llama",
    "qwen2": "converters.architectures.qwen",
    "qwen3": "converters.architectures.qwen",
}

GGUF_FAMILIES: dict[str, str] = {
    "gemma": "converters.architectures.gemma",
    "gemma2": "converters.architectures.gemma",
    "gemma3": "converters.architectures.gemma",
    "llama": "converters.architectures.llama",
    "qwen2": "converters.architectures.qwen",
    "qwen3": "converters.architectures.qwen",
}


def family_of(model_type: str) -> Family:
    """The family module of a Hugging Face `model_type`.

    Raises:
        UnsupportedModelError: No family reads this model type.
    """
    return _load(FAMILIES, model_type, "model_type")


def family_of_gguf(architecture: str) -> Family:
    """The family module of a GGUF `general.architecture`.

    Raises:
        UnsupportedModelError: No family reads this architecture.
    """
    return _load(GGUF_FAMILIES, architecture, "GGUF architecture")


def _load(registry: dict[str, str], name: str, kind: str) -> Family:
    if name not in registry:
        raise UnsupportedModelError(
            f"{kind} {name!r} is not supported",
            why=f"supported are {', '.join(sorted(registry))}",
            fix="use a checkpoint of a supported family, or add one file under converters/architectures and its registry line",
        )
    return cast(Family, importlib.import_module(registry[name]))
