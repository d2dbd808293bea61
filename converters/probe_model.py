"""A model without knowledge: the smallest .tflite the LiteRT-LM runtime opens.

A template or tokenizer is judged by the runtime that will use it, and that runtime answers only with a model loaded. This one
has the signatures of an exported decoder (`prefill_N`, `decode`), a cache it never changes, and two rows of logits: every
prompt is answered with one fixed token and then a stop token. A few hundred kilobytes, built in milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_CACHE_DIM = 4


def build_probe_model(
    vocab_size: int, answer_token_id: int, stop_token_id: int, *, context_length: int = 2048, prefill_length: int = 128
) -> bytes:
    """Serialize the probe.

    Args:
        vocab_size: Width of the logits, (1, 1, vocab_size).
        answer_token_id: What follows any token but itself.
        stop_token_id: What follows the answer token.
        context_length: Tokens the cache seems to hold.
        prefill_length: N of the one `prefill_N` signature.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = _Model(schema)
    for name, length in ((f"prefill_{prefill_length}", prefill_length), ("decode", 1)):
        graph = _Graph(model, name)
        tokens, inputs, outputs = _add_cache(graph, length, context_length)
        if name == "decode":
            outputs.append(("logits", _add_logits(graph, tokens, vocab_size, answer_token_id, stop_token_id)))
        graph.finish(inputs, outputs)
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.table().Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _add_cache(graph: _Graph, length: int, context_length: int) -> tuple[int, list[tuple[str, int]], list[tuple[str, int]]]:
    """The inputs of an exported decoder; the cache goes out as it came in."""
    tokens, position = graph.tensor([1, length], np.int32), graph.tensor([length], np.int32)
    inputs = [("tokens", tokens), ("input_pos", position), ("mask", graph.tensor([1, 1, length, context_length], np.float32))]
    outputs: list[tuple[str, int]] = []
    zero = graph.constant(np.zeros(1, np.float32))
    for name, shape in (("kv_cache_k_0", [1, 1, context_length, _CACHE_DIM]), ("kv_cache_v_0", [1, 1, _CACHE_DIM, context_length])):
        cache = graph.tensor(shape, np.float32)
        inputs.append((name, cache))
        outputs.append((name, graph.apply("ADD", [cache, zero], shape, "AddOptions")))
    return tokens, inputs, outputs


def _add_logits(graph: _Graph, tokens: int, vocab_size: int, answer_token_id: int, stop_token_id: int) -> int:
    """stop_row + min(|token - answer|, 1) * (answer_row - stop_row)."""
    stop_row, difference = np.zeros((1, 1, vocab_size), np.float32), np.zeros((1, 1, vocab_size), np.float32)
    stop_row[..., stop_token_id], difference[..., answer_token_id], difference[..., stop_token_id] = 1.0, 1.0, -1.0
    number = graph.apply("CAST", [tokens], [1, 1], "CastOptions")
    distance = graph.apply("SUB", [number, graph.constant(np.full(1, answer_token_id, np.float32))], [1, 1], "SubOptions")
    distance = graph.apply("ABS", [distance], [1, 1], "AbsOptions")
    is_other = graph.apply("MINIMUM", [distance, graph.constant(np.ones(1, np.float32))], [1, 1], "MaximumMinimumOptions")
    shift = graph.apply("MUL", [graph.constant(difference), is_other], [1, 1, vocab_size], "MulOptions")
    return graph.apply("ADD", [graph.constant(stop_row), shift], [1, 1, vocab_size], "AddOptions")


class _Model:
    """Buffers, operator codes, subgraphs and signatures of one .tflite."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.buffers, self.codes = [schema.BufferT()], dict[str, Any]()
        self.subgraphs: list[Any] = []
        self.signatures: list[Any] = []

    def code_index(self, name: str) -> int:
        if name not in self.codes:
            code = self.schema.OperatorCodeT()
            code.builtinCode, code.version = getattr(self.schema.BuiltinOperator, name), 1
            code.deprecatedBuiltinCode = min(code.builtinCode, 127)
            self.codes[name] = code
        return list(self.codes).index(name)

    def table(self) -> Any:
        model = self.schema.ModelT()
        model.version, model.description = 3, b"probe"
        model.buffers, model.operatorCodes = self.buffers, list(self.codes.values())
        model.subgraphs, model.signatureDefs = self.subgraphs, self.signatures
        return model


class _Graph:
    """One subgraph under construction; tensors are referred to by index."""

    def __init__(self, model: _Model, name: str) -> None:
        self._model, self._name = model, name
        self._tensors: list[Any] = []
        self._operators: list[Any] = []

    def tensor(self, shape: Sequence[int], dtype: type[np.generic], buffer: int = 0) -> int:
        schema = self._model.schema
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.buffer = f"{self._name}_{len(self._tensors)}".encode(), np.array(shape, np.int32), buffer
        tensor.type = schema.TensorType.INT32 if dtype is np.int32 else schema.TensorType.FLOAT32
        tensor.hasRank = True
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def constant(self, value: np.ndarray[Any, np.dtype[np.float32]]) -> int:
        buffer = self._model.schema.BufferT()
        buffer.data = np.frombuffer(value.tobytes(), np.uint8)
        self._model.buffers.append(buffer)
        return self.tensor(value.shape, np.float32, len(self._model.buffers) - 1)

    def apply(self, name: str, inputs: Sequence[int], shape: Sequence[int], options: str) -> int:
        schema = self._model.schema
        operator = schema.OperatorT()
        operator.opcodeIndex, output = self._model.code_index(name), self.tensor(shape, np.float32)
        operator.inputs, operator.outputs = np.array(inputs, np.int32), np.array([output], np.int32)
        operator.builtinOptions, operator.builtinOptionsType = getattr(schema, options + "T")(), getattr(schema.BuiltinOptions, options)
        self._operators.append(operator)
        return output

    def finish(self, inputs: Sequence[tuple[str, int]], outputs: Sequence[tuple[str, int]]) -> None:
        schema, model = self._model.schema, self._model
        graph, signature = schema.SubGraphT(), schema.SignatureDefT()
        graph.name, graph.tensors, graph.operators = self._name.encode(), self._tensors, self._operators
        graph.inputs, graph.outputs = (np.array([index for _, index in ends], np.int32) for ends in (inputs, outputs))
        signature.signatureKey, signature.subgraphIndex = self._name.encode(), len(model.subgraphs)
        signature.inputs, signature.outputs = ([self._named(name, index) for name, index in ends] for ends in (inputs, outputs))
        model.subgraphs.append(graph)
        model.signatures.append(signature)

    def _named(self, name: str, index: int) -> Any:
        entry = self._model.schema.TensorMapT()
        entry.name, entry.tensorIndex = name.encode(), index
        return entry
