"""What a graph computes, held against the checkpoint's spec: a builder that misreads a config writes plausible nonsense."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from converters.spec import ModelSpec
from toolkit.errors import UnsupportedModelError

RELATIVE_TOLERANCE = 1e-5  # attributes are float32
ACTIVATIONS: dict[str, tuple[str, dict[str, str]]] = {
    "silu": ("Sigmoid", {}),
    "gelu_pytorch_tanh": ("Gelu", {"approximate": "tanh"}),
}


def require_faithful(graph: Any, spec: ModelSpec) -> None:
    """Hold attention, norms, activation and softcaps of a graph against the spec.

    Raises:
        UnsupportedModelError: One differs; `why` names it with both values.
    """
    if mistake := next(_mistakes(graph, spec), ""):
        raise UnsupportedModelError(
            "onnxruntime-genai's builder would compute this checkpoint wrongly",
            why=mistake,
            fix="use another target: --to litert, mlx or gguf",
        )


def unsupported_activation(spec: ModelSpec) -> str:
    """Why the activation cannot be had; empty if it can."""
    if spec.activation in ACTIVATIONS:
        return ""
    return f"its activation is {spec.activation}; {', '.join(ACTIVATIONS)} are known to be computed alike"


def _mistakes(graph: Any, spec: ModelSpec) -> Iterator[str]:
    by_kind: dict[str, list[Any]] = {}
    for node in graph.node:
        by_kind.setdefault(node.op_type, []).append(node)
    attentions = by_kind.get("GroupQueryAttention", [])
    if len(attentions) != spec.n_layers:
        yield f"{len(attentions)} attention nodes for {spec.n_layers} layers"
    scalar = spec.head_dim if spec.query_pre_attn_scalar is None else spec.query_pre_attn_scalar
    for index, node in enumerate(attentions):
        is_sliding = spec.layer_types[index] == "sliding"
        wanted = {
            "num_heads": spec.n_heads,
            "kv_num_heads": spec.n_kv_heads,
            "scale": scalar**-0.5,
            "softcap": spec.attn_logit_softcap or 0.0,
            "local_window_size": spec.sliding_window if is_sliding else -1,
            "do_rotary": 1,
            "rotary_interleaved": 0,
        }
        yield from _differences(f"attention of layer {index}", node, wanted)
    for kind in ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"):
        for node in by_kind.get(kind, []):
            yield from _differences(node.name, node, {"epsilon": spec.norm.eps})
    activation, attributes = ACTIVATIONS[spec.activation]
    found = [node for node in by_kind.get(activation, []) if "/mlp/" in node.name]
    if len(found) != spec.n_layers:
        yield f"{len(found)} {activation} nodes for {spec.n_layers} layers"
    for node in found:
        yield from _differences(node.name, node, attributes)
    if bool(spec.final_logit_softcap) != any(node.name.startswith("/lm_head/softcap") for node in graph.node):
        yield f"the checkpoint's final softcap is {spec.final_logit_softcap}, the graph has {'none' if spec.final_logit_softcap else 'one'}"


def _differences(what: str, node: Any, wanted: dict[str, Any]) -> Iterator[str]:
    import onnx

    found = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    for name, value in wanted.items():
        got = found.get(name)
        got = got.decode() if isinstance(got, bytes) else got
        is_close = isinstance(value, float) and isinstance(got, float) and math.isclose(got, value, rel_tol=RELATIVE_TOLERANCE)
        if not (got == value or is_close):
            yield f"{what}: {name} is {got} in the graph and {value} in the checkpoint"
