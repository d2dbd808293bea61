"""The small files of an MLX bundle: config.json with the keys mlx_lm reads, tokenizer and template as Hugging Face has them."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from converters.architectures import family_of
from converters.safetensors_writer import WeightDtype
from converters.targets.mlx_gemmas import mlx_name, wrapped_config
from converters.targets.mlx_storage import Storage
from converters.targets.mlx_weights import module_path

if TYPE_CHECKING:
    from converters.checkpoint import Checkpoint
    from converters.spec import ModelSpec

CONFIG_NAME = "config.json"


def mlx_config(spec: ModelSpec, plan: dict[str, Storage], dtype: WeightDtype) -> dict[str, Any]:
    """config.json of a bundle.

    mlx_lm reads `torch_dtype`, transformers 5 `dtype`, so both are there; and top-level `rope_theta`,
    `rope_local_base_freq` and `sliding_window_pattern`, without which it computes another model and says nothing.
    `quantization` has one entry for each module that is not as its defaults say.
    """
    config = wrapped_config(family_of(spec.model_type).config_from_spec(spec) | {"dtype": dtype, "torch_dtype": dtype})
    paths = {name: module_path(mlx_name(name, spec.model_type)) for name in plan}
    forms = {paths[name]: (storage.group_size, storage.bits) for name, storage in plan.items() if storage.bits is not None}
    if not forms:
        return config
    default = Counter(forms.values()).most_common(1)[0][0]
    quantization: dict[str, Any] = _form(*default)
    quantization |= {path: _form(*form) for path, form in forms.items() if form != default}
    return config | {"quantization": quantization, "quantization_config": quantization}


def _form(group_size: int | None, bits: int | None) -> dict[str, Any]:
    return {"group_size": group_size, "bits": bits, "mode": "affine"}


def text_files(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Tokenizer, template and generation config: file name to content.

    Raises:
        FormatError: The checkpoint has no tokenizer.json.
    """
    checkpoint.tokenizer.require_json()  # mlx_lm reads no other
    return {name: content for name, content in checkpoint.small_files("float32").items() if name != CONFIG_NAME}


def as_json(data: dict[str, Any]) -> str:
    """Text of a JSON file."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
