"""RoPE parameters in each spelling checkpoints use, read into `RopeSpec` and written so that every reader agrees.

transformers 5 nests `rope_parameters` (for Gemma 3 once more by layer type); transformers 4 and mlx-lm read top-level
`rope_theta`, `rope_local_base_freq` and `rope_scaling`. Both are read, both are written: a reader that misses the base
falls back to 10000 without a word, and the text it then writes still looks plausible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.architectures.base import GgufView
from converters.architectures.fields import Fields
from converters.spec import LayerType, RopeSpec
from toolkit.errors import UnsupportedModelError

# The numbers each scaling type needs; the first tuple must be there, the second may be.
_SCALING_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (("factor",), ("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")),
}
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
HF_LAYER_TYPES: dict[LayerType, str] = {"full": "full_attention", "sliding": "sliding_attention"}


def rope_from_config(fields: Fields, layer_types: tuple[LayerType, ...], thetas: dict[LayerType, float]) -> dict[LayerType, RopeSpec]:
    """RoPE of each layer type in `layer_types`; `thetas` holds the family's defaults.

    A family whose `thetas` has one entry uses the same RoPE in every layer.
    """
    nested = fields.mapping("rope_parameters")
    by_type = _is_by_layer_type(nested, fields)
    result: dict[LayerType, RopeSpec] = {}
    for layer_type in dict.fromkeys(layer_types):
        is_local = layer_type == "sliding" and len(thetas) == 2
        old_key = "rope_local_base_freq" if is_local else "rope_theta"
        theta = fields.number(old_key, default=thetas[layer_type if is_local else "full"])
        scaling = _scaling(Fields({} if is_local else fields.mapping("rope_scaling"), f"{fields.origin} (rope_scaling)"))
        name = HF_LAYER_TYPES[layer_type]
        if by_type and name not in nested:
            raise fields.fail("rope_parameters", f"has nothing for {name} layers, which the model has")
        by_name = Fields(nested, f"{fields.origin} (rope_parameters)")
        parameters = by_name.mapping(name) if by_type else ({} if is_local else nested)
        if parameters:
            inner = Fields(parameters, f"{fields.origin} (rope_parameters{f'.{name}' if by_type else ''})")
            theta, scaling = inner.number("rope_theta", default=theta), _scaling(inner)
        result[layer_type] = RopeSpec(theta, scaling)
    return result


def _is_by_layer_type(nested: Mapping[str, Any], fields: Fields) -> bool:
    """Whether `rope_parameters` has one object for each layer type, rather than the numbers themselves."""
    names = tuple(HF_LAYER_TYPES.values())
    by_type = any(name in nested for name in names)
    for key, value in nested.items():
        if key not in names and (isinstance(value, Mapping) or (by_type and value is not None)):
            raise fields.fail("rope_parameters", f"holds {key[:40]!r}, but is either numbers or an object each for {' and '.join(names)}")
    return by_type


def _scaling(fields: Fields) -> dict[str, Any] | None:
    origin = fields.origin
    if "factor" in fields and "rope_type" not in fields and "type" not in fields:
        raise fields.fail("rope_type", "is missing, and there is a factor")
    rope_type = fields.text("rope_type", default=fields.text("type", default="default"))
    if fields.number("partial_rotary_factor", default=1.0) != 1.0:
        raise UnsupportedModelError(
            f"{origin} rotates only a part of each head",
            why=f"partial_rotary_factor is {fields.data['partial_rotary_factor']}; the families here rotate all of it",
            fix="use a checkpoint that rotates whole heads",
        )
    if rope_type == "default":
        return None
    if rope_type not in _SCALING_KEYS:
        raise UnsupportedModelError(
            f"RoPE scaling {rope_type!r} is not supported",
            why=f"{origin} asks for it; supported are {', '.join(_SCALING_KEYS)}",
            fix="use a checkpoint without it, or add its formula to converters/architectures/rope.py",
        )
    needed, optional = _SCALING_KEYS[rope_type]
    keys = [*needed, *(key for key in optional if key in fields)]
    for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        if low in keys and high in keys and fields.number(low) >= fields.number(high):
            raise fields.fail(low, f"must be below {high} {fields.number(high):g}, found {fields.number(low):g}")
    return {"rope_type": rope_type} | {key: _as_written(fields.number(key)) for key in keys}


def _as_written(value: float) -> float | int:
    return int(value) if value.is_integer() and value >= 1024 else value


def rope_to_config(rope: dict[LayerType, RopeSpec], *, by_layer_type: bool) -> dict[str, Any]:
    """The config keys for `rope`, nested and top-level."""
    full = rope.get("full") or next(iter(rope.values()))
    config: dict[str, Any] = {"rope_theta": full.theta, "rope_scaling": full.scaling}
    if not by_layer_type:
        return config | {"rope_parameters": _nested(full)}
    sliding = rope.get("sliding", full)
    nested = {"full_attention": _nested(full), "sliding_attention": _nested(sliding)}
    return config | {"rope_local_base_freq": sliding.theta, "rope_parameters": nested}


def _nested(rope: RopeSpec) -> dict[str, Any]:
    return {"rope_type": "default", **(rope.scaling or {}), "rope_theta": rope.theta}


def rope_from_gguf(gguf: GgufView, fields: Fields, head_dim: int, default_theta: float = 10000.0) -> RopeSpec:
    """The RoPE of full-attention layers as GGUF stores it: a base, a linear factor, or llama3 factors as a tensor."""
    theta = fields.number("rope.freq_base", default=default_theta)
    if fields.integer("rope.dimension_count", default=head_dim) != head_dim:
        raise fields.fail("rope.dimension_count", f"must be head_dim {head_dim}: partly rotated heads are not supported")
    if gguf.shape("rope_freqs.weight") is not None:
        return RopeSpec(theta, _llama3_from_factors(gguf, theta, head_dim))
    kind = fields.text("rope.scaling.type", default="none")
    if kind == "none":
        factor = fields.number("rope.scale_linear", default=1.0)
    elif kind == "linear":
        factor = fields.number("rope.scaling.factor")
    else:
        raise UnsupportedModelError(
            f"RoPE scaling {kind!r} in GGUF is not supported",
            why=f"{gguf.name} asks for it; GGUF keeps it in llama.cpp's own terms",
            fix="convert from the Hugging Face checkpoint instead",
        )
    return RopeSpec(theta, None if factor == 1.0 else {"rope_type": "linear", "factor": factor})


def llama3_factors(theta: float, head_dim: int, scaling: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """Divisor of each rotary frequency under Llama 3's scaling, shape (head_dim // 2,).

    Source: Llama 3.1's published scaling: wavelengths above original/low_freq_factor are slowed by `factor`, those
    below original/high_freq_factor are kept, and a linear ramp joins them.
    """
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    low, high, original = (float(scaling[key]) for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    kept = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    divisors: npt.NDArray[np.float64] = 1.0 / ((1.0 - kept) / float(scaling["factor"]) + kept)
    return divisors


def _llama3_from_factors(gguf: GgufView, theta: float, head_dim: int) -> dict[str, Any] | None:
    factors = gguf.load("rope_freqs.weight").reshape(-1).astype(np.float64)
    if factors.shape == (head_dim // 2,) and np.all(factors == 1.0):
        return None
    scaling = {"rope_type": "llama3", "factor": float(np.round(factors.max(), 4)), **_LLAMA3}
    is_plausible = factors.shape == (head_dim // 2,) and factors.min() >= 1.0
    if not is_plausible or not np.allclose(factors, llama3_factors(theta, head_dim, scaling), rtol=1e-3):
        raise UnsupportedModelError(
            f"{gguf.name} scales RoPE in a way that is not supported",
            why="rope_freqs.weight is not Llama 3's scaling (low 1, high 4, original context 8192)",
            fix="convert from the Hugging Face checkpoint instead",
        )
    return scaling
