"""Whisper as the two ONNX graphs sherpa-onnx runs: sound to cross-attention caches, and tokens to logits with a cache of their own.

sherpa-onnx passes tensors by their order and reads sizes from the encoder's metadata. What the encoder gives goes to the decoder
untouched, so the caches are laid out as attention reads them, split into heads. Frames are counted at run time: sherpa-onnx pads a
recording by ten seconds, not to thirty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from converters.checkpoint import TensorSource
from converters.targets.onnx_matmul import DOMAIN, Nodes
from converters.targets.onnx_whisper_weights import RuleOf, Weights
from converters.whisper_spec import WhisperSpec

OPSET, DOMAIN_VERSION, IR_VERSION = 20, 1, 9  # what onnxruntime 1.18 and later read
LAYER_NORM_EPS = 1e-5
MASKED = -1.0e9
TABLE = "model.decoder.embed_tokens.weight"


def encoder_model(spec: WhisperSpec, tensors: TensorSource, rule_of: RuleOf, facts: Mapping[str, str]) -> Any:
    """An onnx.ModelProto: `mel` (1, n_mels, n_frames) to `n_layer_cross_k`, `n_layer_cross_v` (layers, heads, n_frames / 2, head_dim).

    Args:
        spec: Sizes.
        tensors: The checkpoint's.
        rule_of: The rule of a tensor.
        facts: The metadata a runtime reads.

    Raises:
        ValueError: A matrix does not fit its rule.
    """
    weights = Weights(Nodes("encoder"), tensors, rule_of)
    nodes = weights.nodes
    states = _encoder_states(spec, weights)
    for kind in "kv":
        layers = []
        for index in range(spec.decoder.n_layers):
            projected = weights.linear(f"model.decoder.layers.{index}.encoder_attn.{kind}_proj", states)
            split = nodes.add("Reshape", [projected, nodes.constant(np.array([1, -1, spec.decoder.n_heads, spec.head_dim]))])
            layers.append(nodes.add("Transpose", [split], perm=[0, 2, 1, 3]))
        nodes.add("Concat", layers, f"n_layer_cross_{kind}", axis=0)
    cross = [spec.decoder.n_layers, spec.decoder.n_heads, "n_positions", spec.head_dim]
    model = _model(weights, {"mel": ("float", [1, spec.n_mels, "n_frames"])}, {f"n_layer_cross_{kind}": ("float", cross) for kind in "kv"})
    for key, value in facts.items():
        model.metadata_props.add(key=key, value=value)
    return model


def decoder_model(spec: WhisperSpec, tensors: TensorSource, rule_of: RuleOf) -> Any:
    """An onnx.ModelProto: `tokens` (1, n), caches and `offset` (1,), the tokens they hold, to `logits` (1, n, vocab_size) and caches.

    Self-attention caches are (layers, 1, max_context_length, hidden_size); rows from `offset` on are not looked at.

    Raises:
        ValueError: A matrix does not fit its rule.
    """
    weights = Weights(Nodes("decoder"), tensors, rule_of)
    nodes = weights.nodes
    step = _Step(spec, weights)
    x = nodes.add("Add", [weights.look_up(TABLE, "tokens"), step.positions()])
    for index in range(spec.decoder.n_layers):
        layer = f"model.decoder.layers.{index}."
        x = step.attend_past(layer, index, x)
        x = step.attend_sound(layer, index, x)
        x = _mlp(weights, layer, x)
    weights.head(TABLE, weights.norm("model.decoder.layer_norm", x, LAYER_NORM_EPS), "logits")
    step.write_caches()
    n_layers = spec.decoder.n_layers
    past = [n_layers, 1, spec.max_context_length, spec.hidden_size]
    cross = [n_layers, spec.decoder.n_heads, "n_positions", spec.head_dim]
    inputs: dict[str, tuple[str, list[Any]]] = {"tokens": ("int64", [1, "n_tokens"])}
    inputs |= {f"in_n_layer_self_{kind}_cache": ("float", past) for kind in "kv"}
    inputs |= {f"n_layer_cross_{kind}": ("float", cross) for kind in "kv"} | {"offset": ("int64", [1])}
    outputs: dict[str, tuple[str, list[Any]]] = {"logits": ("float", [1, "n_tokens", spec.vocab_size])}
    return _model(weights, inputs, outputs | {f"out_n_layer_self_{kind}_cache": ("float", past) for kind in "kv"})


def _encoder_states(spec: WhisperSpec, weights: Weights) -> str:
    """(1, n_frames / 2, hidden_size)."""
    nodes, x = weights.nodes, "mel"
    for name, stride in (("conv1", 1), ("conv2", 2)):
        inputs = [x, weights.plain(f"model.encoder.{name}.weight"), weights.plain(f"model.encoder.{name}.bias")]
        x = nodes.add("Gelu", [nodes.add("Conv", inputs, kernel_shape=[3], pads=[1, 1], strides=[stride])])
    x = nodes.add("Transpose", [x], perm=[0, 2, 1])
    n_positions = nodes.add("Shape", [x], start=1, end=2)
    table = weights.plain("model.encoder.embed_positions.weight")
    x = nodes.add("Add", [x, nodes.add("Slice", [table, nodes.constant(np.array([0])), n_positions])])
    for index in range(spec.encoder.n_layers):
        layer = f"model.encoder.layers.{index}."
        normed = weights.norm(f"{layer}self_attn_layer_norm", x, LAYER_NORM_EPS)
        projected = [weights.linear(f"{layer}self_attn.{kind}_proj", normed) for kind in "qkv"]
        x = _mlp(weights, layer, _attended(weights, f"{layer}self_attn", x, projected, spec.encoder.n_heads))
    return weights.norm("model.encoder.layer_norm", x, LAYER_NORM_EPS)


def _attended(weights: Weights, name: str, x: str, inputs: Sequence[str], n_heads: int) -> str:
    """x plus the output projection of one attention; keys and values may come split into heads."""
    mixed = weights.nodes.add("MultiHeadAttention", inputs, domain=DOMAIN, num_heads=n_heads)
    return weights.nodes.add("Add", [x, weights.linear(f"{name}.out_proj", mixed)])


def _mlp(weights: Weights, layer: str, x: str) -> str:
    hidden = weights.linear(f"{layer}fc1", weights.norm(f"{layer}final_layer_norm", x, LAYER_NORM_EPS))
    return weights.nodes.add("Add", [x, weights.linear(f"{layer}fc2", weights.nodes.add("Gelu", [hidden]))])


class _Step:
    """The decoder's attentions and caches, and what they share: where the tokens stand and what each may look at."""

    def __init__(self, spec: WhisperSpec, weights: Weights) -> None:
        self.spec, self.weights, self.nodes = spec, weights, weights.nodes
        nodes = self.nodes
        self.zero, self.one = nodes.constant(np.array(0)), nodes.constant(np.array(1))
        self.n_tokens = nodes.add("Shape", ["tokens"], start=1, end=2)
        self.end = nodes.add("Add", ["offset", self.n_tokens])
        last = nodes.add("Squeeze", [self.end])
        self.places = nodes.add("Range", [nodes.add("Squeeze", ["offset"]), last, self.one])
        column = nodes.add("Unsqueeze", [self.places, nodes.constant(np.array([-1]))])
        later = nodes.add("Greater", [nodes.add("Range", [self.zero, last, self.one]), column])
        bias = nodes.add("Mul", [nodes.add("Cast", [later], to=1), nodes.constant(np.array(MASKED, np.float32))])
        self.mask = nodes.add("Unsqueeze", [bias, nodes.constant(np.array([0, 1]))])  # (1, 1, n, offset + n)
        self.new: dict[str, list[str]] = {"k": [], "v": []}

    def positions(self) -> str:
        """The tokens' rows of the position table, (n, hidden_size)."""
        return self.nodes.add("Gather", [self.weights.plain("model.decoder.embed_positions.weight"), self.places], axis=0)

    def attend_past(self, layer: str, index: int, x: str) -> str:
        """Attend to the rows of the cache that hold something, and to the tokens themselves."""
        nodes, name = self.nodes, f"{layer}self_attn"
        normed = self.weights.norm(f"{name}_layer_norm", x, LAYER_NORM_EPS)
        query = self.weights.linear(f"{name}.q_proj", normed)
        both = []
        for kind in "kv":
            new = self.weights.linear(f"{name}.{kind}_proj", normed)
            self.new[kind].append(new)
            # cut before anything else: only the rows in use are copied, not the whole cache
            starts = nodes.constant(np.array([index, 0]))
            ends = nodes.add("Concat", [nodes.constant(np.array([index + 1])), "offset"], axis=0)
            past = nodes.add("Slice", [f"in_n_layer_self_{kind}_cache", starts, ends, nodes.constant(np.array([0, 2]))])
            past = nodes.add("Squeeze", [past, nodes.constant(np.array([0]))])
            both.append(nodes.add("Concat", [past, new], axis=1))
        return _attended(self.weights, name, x, [query, *both, "", "", self.mask], self.spec.decoder.n_heads)

    def attend_sound(self, layer: str, index: int, x: str) -> str:
        """Attend to the layer's part of what the encoder gave."""
        nodes, name = self.nodes, f"{layer}encoder_attn"
        query = self.weights.linear(f"{name}.q_proj", self.weights.norm(f"{name}_layer_norm", x, LAYER_NORM_EPS))
        place = nodes.constant(np.array([index]))
        sound = [nodes.add("Gather", [f"n_layer_cross_{kind}", place], axis=0) for kind in "kv"]
        return _attended(self.weights, name, x, [query, *sound], self.spec.decoder.n_heads)

    def write_caches(self) -> None:
        """Both caches with the new rows in place: every layer's cache end to end is one table, so one scatter writes all."""
        nodes, spec = self.nodes, self.spec
        n_layers, context, width = spec.decoder.n_layers, spec.max_context_length, spec.hidden_size
        starts = nodes.constant(np.arange(n_layers)[:, None] * context)
        rows = nodes.add("Reshape", [nodes.add("Add", [starts, self.places]), nodes.constant(np.array([-1, 1]))])
        table, whole = nodes.constant(np.array([-1, width])), nodes.constant(np.array([n_layers, 1, context, width]))
        for kind in "kv":
            new = nodes.add("Reshape", [nodes.add("Concat", self.new[kind], axis=0), table])
            cache = nodes.add("Reshape", [f"in_n_layer_self_{kind}_cache", table])
            written = nodes.add("ScatterND", [cache, rows, new])
            nodes.add("Reshape", [written, whole], f"out_n_layer_self_{kind}_cache")


def _model(weights: Weights, inputs: dict[str, tuple[str, list[Any]]], outputs: dict[str, tuple[str, list[Any]]]) -> Any:
    import onnx

    types = {"float": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64}
    given, made = (
        [onnx.helper.make_tensor_value_info(name, types[kind], shape) for name, (kind, shape) in side.items()] for side in (inputs, outputs)
    )
    nodes = weights.nodes
    graph = onnx.helper.make_graph(nodes.nodes, nodes.name, given, made, initializer=[*weights.initializers, *nodes.constants])
    opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="ondevice-toolkit")
