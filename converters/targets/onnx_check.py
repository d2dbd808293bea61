"""What a graph computes, held against the checkpoint's spec: a builder that misreads a config writes plausible nonsense."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from converters.spec import ModelSpec
from converters.targets import other_targets
from converters.targets.onnx_graph import LOOKUP_SCALE
from toolkit.errors import UnsupportedModelError

RELATIVE_TOLERANCE = 1e-5  # attributes are float32
NORMS = ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization")
SOFTCAP = ("/lm_head/softcap/Div", "/lm_head/softcap/Tanh", "/lm_head/softcap/Mul")
ACTIVATIONS: dict[str, tuple[str, dict[str, str]]] = {
    "silu": ("Sigmoid", {}),
    "gelu_pytorch_tanh": ("Gelu", {"approximate": "tanh"}),
}


def require_faithful(graph: Any, spec: ModelSpec) -> None:
    """Hold attention, norms, activation, softcaps and the scaling of embeddings in a graph against the spec.

    Raises:
        UnsupportedModelError: One differs; `why` names it with both values.
    """
    if mistake := next(_mistakes(graph, spec), ""):
        raise UnsupportedModelError(
            "onnxruntime-genai's builder would compute this checkpoint wrongly",
            why=mistake,
            fix=other_targets("onnx", spec.model_type),
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
    yield from _attention_mistakes(by_kind.get("GroupQueryAttention", []), spec)
    norms = [node for kind in NORMS for node in by_kind.get(kind, [])]
    n_norms = spec.n_layers * (2 + 2 * spec.norm.has_post_norms + 2 * spec.norm.has_qk_norm) + 1
    if len(norms) != n_norms:
        yield f"{len(norms)} norms in the graph and {n_norms} in the checkpoint"
    for node in norms:
        yield from _differences(node.name, node, {"epsilon": spec.norm.eps})
    activation, attributes = ACTIVATIONS[spec.activation]
    found = [node for node in by_kind.get(activation, []) if "/mlp/" in node.name]
    if len(found) != spec.n_layers:
        yield f"{len(found)} {activation} nodes for {spec.n_layers} layers"
    for node in found:
        yield from _differences(node.name, node, attributes)
    yield from _scalar_mistakes(graph, spec)


def _attention_mistakes(attentions: Sequence[Any], spec: ModelSpec) -> Iterator[str]:
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


def _scalar_mistakes(graph: Any, spec: ModelSpec) -> Iterator[str]:
    """The numbers that stand as constants beside the layers: softcap of the logits, scale of the embeddings."""
    nodes = {node.name: node for node in graph.node}
    constants = {node.output[0]: node for node in graph.node if node.op_type == "Constant"}
    cap, parts = spec.final_logit_softcap, [name for name in SOFTCAP if name in nodes]
    if bool(cap) != bool(parts) or len(parts) not in (0, len(SOFTCAP)):
        yield f"the checkpoint's final softcap is {cap}, the graph has {len(parts)} of the {len(SOFTCAP)} nodes of one"
    elif cap:
        for name in (SOFTCAP[0], SOFTCAP[-1]):
            got = _scalar(constants.get(nodes[name].input[1]))
            if got is None or not math.isclose(got, cap, rel_tol=RELATIVE_TOLERANCE):
                yield f"final softcap: {name} takes {got} in the graph and {cap} in the checkpoint"
    # Its value is the writer's to set, but only where there is a node to set it in.
    if (spec.embedding_scale is not None) != (LOOKUP_SCALE in nodes):
        has = "multiplies" if LOOKUP_SCALE in nodes else "does not multiply"
        yield f"the checkpoint's embedding scale is {spec.embedding_scale}, the graph {has} embeddings"


def _scalar(constant: Any) -> float | None:
    import onnx

    if constant is None:
        return None
    values = onnx.numpy_helper.to_array(next(each.t for each in constant.attribute if each.name == "value"))
    return float(values) if values.ndim == 0 else None


def _differences(what: str, node: Any, wanted: dict[str, Any]) -> Iterator[str]:
    import onnx

    found = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    for name, value in wanted.items():
        got = found.get(name)
        got = got.decode() if isinstance(got, bytes) else got
        is_close = isinstance(value, float) and isinstance(got, float) and math.isclose(got, value, rel_tol=RELATIVE_TOLERANCE)
        if not (got == value or is_close):
            yield f"{what}: {name} is {got} in the graph and {value} in the checkpoint"
