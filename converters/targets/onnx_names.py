"""Which tensor of the checkpoint an initializer of the builder's graph stands for, and whether the graph asks for all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from converters.spec import ModelSpec
from converters.targets import other_targets
from toolkit.errors import UnsupportedModelError

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
GRAPH_HEAD = "lm_head.MatMul.weight"
_MATRIX = ".MatMul.weight"
_LAYER = re.compile(r"model\.layers\.(\d+)\.(attn|mlp)?\.?(.+)")
_PARTS = {"attn": "self_attn", "mlp": "mlp"}


def is_rope_table(name: str) -> bool:
    """Whether an initializer is a rotary table, which is no weight."""
    return name.startswith(("cos_cache", "sin_cache"))


def hf_name(name: str, spec: ModelSpec) -> str:
    """The Hugging Face name of what an initializer holds: the matrix transposed, or the vector."""
    if name == GRAPH_HEAD:
        return EMBEDDING if spec.tie_embeddings else HEAD
    if name == f"model.layers.{spec.n_layers}.final_norm_layernorm.weight":
        return "model.norm.weight"
    match = _LAYER.fullmatch(name)
    if match is None:
        return name
    layer, part, rest = match.groups()
    for inserted in (".MatMul", ".Add", ".layernorm"):
        rest = rest.replace(inserted, "")
    return ".".join(["model.layers", layer, *([_PARTS[part]] if part else []), rest])


def is_matrix(name: str) -> bool:
    """Whether an initializer is a matrix the graph multiplies with, (in_features, out_features)."""
    return name.endswith(_MATRIX)


def require_all_tensors(graph: Any, spec: ModelSpec, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Hold the graph's initializers against the checkpoint's tensors: each there, none more, shapes alike.

    Args:
        graph: onnx.GraphProto as the builder made it.
        spec: The checkpoint's.
        shapes: Hugging Face name -> shape.

    Raises:
        UnsupportedModelError: They differ, so the builder understood another model.
    """
    found: dict[str, tuple[int, ...]] = {}
    for tensor in graph.initializer:
        if not is_rope_table(tensor.name):
            shape = tuple(tensor.dims)
            found[hf_name(tensor.name, spec)] = shape[::-1] if is_matrix(tensor.name) else shape
    wanted = {name: tuple(shape) for name, shape in shapes.items() if not (spec.tie_embeddings and name == HEAD)}
    if found == wanted:
        return
    name = next(name for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name))
    raise UnsupportedModelError(
        "onnxruntime-genai's builder does not understand this checkpoint",
        why=f"{name} has shape {wanted.get(name, 'none')} in the checkpoint and {found.get(name, 'none')} in the graph",
        fix=other_targets("onnx", spec.model_type),
    )
