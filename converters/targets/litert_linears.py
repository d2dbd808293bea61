"""Rewriting a lowered float graph: linears and the token table in LiteRT's integer forms, with the operators those need.

Done on the written .tflite and not on the model before lowering, so that one lowering serves every recipe: a rewrite takes
seconds, a lowering minutes. Every signature is a graph of its own and shares the constants of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.architectures.base import FloatArray
from converters.targets.litert_model_file import ModelFile
from converters.targets.litert_weights import GroupedLinear, Int4Groups, Int8Rows, pack_int4

MAX_NAME_CHARACTERS = 80


@dataclass(frozen=True)
class SplitTable:
    """A token table whose first rows (the frequent tokens) have 8 bits: `low` holds them, `high` all others."""

    low: Int8Rows
    high: Int4Groups


Table = Int8Rows | Int4Groups | SplitTable
Stored = Table | GroupedLinear


@dataclass
class _Constants:
    """Buffers of one matrix, written once and used by every graph."""

    codes: int
    scales: int | None = None


class GraphRewriter:
    """One subgraph being rewritten. Operators are put together in `operators` and take the old ones' place at the end."""

    def __init__(self, file: ModelFile, graph: Any) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self.file, self.graph, self.schema = file, graph, schema
        self.operators: list[Any] = []
        self.after: list[Any] = []  # operators that belong behind the one being replaced
        self._sums: dict[tuple[int, int], int] = {}
        self._shapes: dict[tuple[int, ...], int] = {}
        self.weights: dict[int, int] = {}  # id of a matrix -> its tensor here

    def shape(self, tensor: int) -> list[int]:
        return [int(size) for size in self.graph.tensors[tensor].shape]

    def add_tensor(self, name: str, shape: list[int], kind: int, *, buffer: int = 0, quantization: Any = None) -> int:
        tensor = self.schema.TensorT(
            shape=np.array(shape, np.int32), type=kind, buffer=buffer, name=name.encode(), quantization=quantization, hasRank=True
        )
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def constant(self, name: str, value: npt.NDArray[Any]) -> int:
        """A constant of this graph: int32 or float32."""
        kind = self.schema.TensorType.INT32 if value.dtype == np.int32 else self.schema.TensorType.FLOAT32
        return self.add_tensor(name, list(value.shape), kind, buffer=self.file.add_constant(value))

    def emit(self, builtin: str, inputs: list[int], shape: list[int], name: str, options: Any = None, kind: int | None = None) -> int:
        """Append an operator with one output, float32 unless `kind` says otherwise; returns the output tensor."""
        out = self.add_tensor(name, shape, self.schema.TensorType.FLOAT32 if kind is None else kind)
        self.append(builtin, inputs, out, options)
        return out

    def append(self, builtin: str, inputs: list[int], out: int, options: Any = None) -> None:
        kind = 0 if options is None else getattr(self.schema.BuiltinOptions, type(options).__name__.removesuffix("T"))
        operator = self.schema.OperatorT(
            opcodeIndex=self.file.opcode(getattr(self.schema.BuiltinOperator, builtin)),
            inputs=np.array(inputs, np.int32),
            outputs=np.array([out], np.int32),
            builtinOptionsType=kind,
            builtinOptions=options,
        )
        self.operators.append(operator)

    def reshape(self, tensor: int, shape: list[int], name: str) -> int:
        key = tuple(shape)
        if key not in self._shapes:
            self._shapes[key] = self.constant(f"{name}_shape", np.array(shape, np.int32))
        options = self.schema.ReshapeOptionsT(newShape=np.array(shape, np.int32))
        return self.emit("RESHAPE", [tensor, self._shapes[key]], shape, name, options)

    def group_sums(self, tensor: int, group_size: int, name: str) -> int:
        """Sums over each group of `group_size` values along the last axis; worked out once for all that read the tensor."""
        if (tensor, group_size) not in self._sums:
            shape = self.shape(tensor)
            n_groups = shape[-1] // group_size
            grouped = self.reshape(tensor, [*shape[:-1], n_groups, group_size], f"{name}_groups")
            axis = self.constant(f"{name}_axis", np.array([len(shape)], np.int32))
            options = self.schema.ReducerOptionsT(keepDims=False)
            self._sums[tensor, group_size] = self.emit("SUM", [grouped, axis], [*shape[:-1], n_groups], f"{name}_sums", options)
        return self._sums[tensor, group_size]

    def fully_connected(self, x: int, weight: int, bias: int, out: int, options: Any) -> None:
        self.append("FULLY_CONNECTED", [x, weight, bias], out, options)


@dataclass
class MatrixWriter:
    """Puts matrices into a model: buffers once, tensors in each graph that uses them."""

    file: ModelFile
    _buffers: dict[int, _Constants] = field(default_factory=dict)
    _kept: list[object] = field(default_factory=list)  # keeps ids unique while they are keys

    def _constants(self, matrix: Int8Rows | Int4Groups) -> _Constants:
        if id(matrix) not in self._buffers:
            self._kept.append(matrix)
            if isinstance(matrix, Int8Rows):
                made = _Constants(self.file.add_constant(matrix.codes))
            else:
                made = _Constants(self.file.add_constant(pack_int4(matrix.codes)), self.file.add_constant(matrix.scales.astype(np.float16)))
            self._buffers[id(matrix)] = made
        return self._buffers[id(matrix)]

    def tensor(self, graph: GraphRewriter, matrix: Int8Rows | Int4Groups, name: str) -> int:
        """The tensor of a matrix in one graph, with its quantization parameters; a table has one for lookup and head."""
        if id(matrix) not in graph.weights:
            graph.weights[id(matrix)] = self._new_tensor(graph, matrix, name)
        return graph.weights[id(matrix)]

    def _new_tensor(self, graph: GraphRewriter, matrix: Int8Rows | Int4Groups, name: str) -> int:
        schema, constants = graph.schema, self._constants(matrix)
        shape = list(matrix.codes.shape)
        if isinstance(matrix, Int8Rows):
            quantization = schema.QuantizationParametersT(
                scale=matrix.scales, zeroPoint=np.zeros(len(matrix.scales), np.int64), quantizedDimension=0
            )
            return graph.add_tensor(name, shape, schema.TensorType.INT8, buffer=constants.codes, quantization=quantization)
        assert constants.scales is not None
        kind = schema.TensorType.FLOAT16
        scales = graph.add_tensor(f"{name}_scales", list(matrix.scales.shape), kind, buffer=constants.scales)
        details = schema.BlockwiseQuantizationT(scales=scales, zeroPoints=-1, blockSize=matrix.group_size)
        quantization = schema.QuantizationParametersT(
            detailsType=schema.QuantizationDetails.BlockwiseQuantization, details=details, quantizedDimension=0
        )
        return graph.add_tensor(name, shape, schema.TensorType.INT4, buffer=constants.codes, quantization=quantization)


def rewrite(file: ModelFile, matrices: Mapping[int, tuple[str, Stored]], divisors: Mapping[int, FloatArray] | None = None) -> int:
    """Replace the float matrices of a model.

    Args:
        file: A lowered float model; its graphs are changed in place.
        matrices: Buffer index of a float matrix -> (tensor name, its integer form). One that is looked up is a `Table`.
        divisors: Buffer index of a table -> what each channel of a row is divided by once it has been looked up.

    Returns:
        Number of operators replaced.
    """
    from ai_edge_litert import schema_py_generated as schema

    writer, n_replaced = MatrixWriter(file), 0
    handlers: dict[int, Callable[[GraphRewriter, MatrixWriter, Any, str, Any], None]] = {
        int(schema.BuiltinOperator.FULLY_CONNECTED): _replace_linear,
        int(schema.BuiltinOperator.EMBEDDING_LOOKUP): _replace_lookup,
    }
    for subgraph in file.model.subgraphs:
        graph = GraphRewriter(file, subgraph)
        for operator in subgraph.operators:
            handler = handlers.get(file.builtin_of(operator))
            entry = matrices.get(subgraph.tensors[operator.inputs[1]].buffer) if handler else None
            if handler is None or entry is None:
                graph.operators.append(operator)
                continue
            divisor = (divisors or {}).get(subgraph.tensors[operator.inputs[1]].buffer)
            if divisor is not None and file.builtin_of(operator) == schema.BuiltinOperator.EMBEDDING_LOOKUP:
                operator = _divided(graph, operator, entry[0], divisor)
            handler(graph, writer, operator, entry[0], entry[1])
            n_replaced += 1
            graph.operators += graph.after
            graph.after = []
        subgraph.operators = graph.operators
        _shorten_names(subgraph)
    file.drop_unused()
    return n_replaced


def _shorten_names(graph: Any) -> None:
    """Lowered values carry their path through the modules, up to 900 characters each; it is of no use to a runtime."""
    for index, tensor in enumerate(graph.tensors):
        if len(tensor.name) > MAX_NAME_CHARACTERS:
            tensor.name = f"v{index}".encode()


def _divided(graph: GraphRewriter, lookup: Any, name: str, divisor: FloatArray) -> Any:
    """A lookup whose rows go through a division before they are used."""
    out = int(lookup.outputs[0])
    rows = graph.add_tensor(f"{name}_scaled_rows", graph.shape(out), graph.schema.TensorType.FLOAT32)
    factor = graph.constant(f"{name}_factor", (1 / divisor).astype(np.float32))
    n_before = len(graph.operators)
    graph.append("MUL", [rows, factor], out, graph.schema.MulOptionsT())
    graph.after = graph.operators[n_before:]
    del graph.operators[n_before:]
    lookup.outputs = np.array([rows], np.int32)
    return lookup


def _replace_linear(graph: GraphRewriter, writer: MatrixWriter, operator: Any, name: str, stored: Stored) -> None:
    x, out = int(operator.inputs[0]), int(operator.outputs[0])
    bias = int(operator.inputs[2]) if len(operator.inputs) > 2 else -1
    options = operator.builtinOptions
    if isinstance(stored, SplitTable):
        parts = []
        for part, matrix in (("low", stored.low), ("high", stored.high)):
            weight = writer.tensor(graph, matrix, f"{name}_{part}")
            shape = [*graph.shape(out)[:-1], matrix.codes.shape[0]]
            parts.append(graph.emit("FULLY_CONNECTED", [x, weight, -1], shape, f"{name}_{part}_out", options))
        concatenation = graph.schema.ConcatenationOptionsT(axis=len(graph.shape(out)) - 1)
        graph.append("CONCATENATION", parts, out, concatenation)
        return
    groups = stored.groups if isinstance(stored, GroupedLinear) else stored
    weight = writer.tensor(graph, groups, name)
    if not isinstance(stored, GroupedLinear) or stored.sums is None:
        graph.fully_connected(x, weight, bias, out, options)
        return
    sums = graph.group_sums(x, stored.groups.group_size, name)
    main = graph.emit("FULLY_CONNECTED", [x, weight, bias], graph.shape(out), f"{name}_main", options)
    offsets = writer.tensor(graph, stored.sums, f"{name}_offsets")
    added = graph.emit("FULLY_CONNECTED", [sums, offsets, -1], graph.shape(out), f"{name}_added", options)
    graph.append("ADD", [main, added], out, graph.schema.AddOptionsT())


def _replace_lookup(graph: GraphRewriter, writer: MatrixWriter, operator: Any, name: str, stored: Table) -> None:
    ids, out = int(operator.inputs[0]), int(operator.outputs[0])
    if not isinstance(stored, SplitTable):
        graph.append("EMBEDDING_LOOKUP", [ids, writer.tensor(graph, stored, name)], out)
        return
    schema = graph.schema
    n_ids, int32, n_low = graph.shape(ids), schema.TensorType.INT32, len(stored.low.codes)
    first, last = (graph.constant(f"{name}_{what}", np.array(value, np.int32)) for what, value in (("first", 0), ("last", n_low - 1)))
    n_low_tensor = graph.constant(f"{name}_n_low", np.array(n_low, np.int32))
    low_ids = graph.emit("MINIMUM", [ids, last], n_ids, f"{name}_low_ids", schema.MaximumMinimumOptionsT(), int32)
    shifted = graph.emit("SUB", [ids, n_low_tensor], n_ids, f"{name}_shifted", schema.SubOptionsT(), int32)
    high_ids = graph.emit("MAXIMUM", [shifted, first], n_ids, f"{name}_high_ids", schema.MaximumMinimumOptionsT(), int32)
    rows = [
        graph.emit("EMBEDDING_LOOKUP", [each, writer.tensor(graph, matrix, f"{name}_{part}")], graph.shape(out), f"{name}_{part}_rows")
        for part, each, matrix in (("low", low_ids, stored.low), ("high", high_ids, stored.high))
    ]
    is_low = graph.emit("LESS", [ids, n_low_tensor], n_ids, f"{name}_is_low", schema.LessOptionsT(), schema.TensorType.BOOL)
    shape = [*n_ids, 1]
    column = graph.add_tensor(f"{name}_column", shape, schema.TensorType.BOOL)
    wanted = graph.constant(f"{name}_column_shape", np.array(shape, np.int32))
    graph.append("RESHAPE", [is_low, wanted], column, schema.ReshapeOptionsT(newShape=np.array(shape, np.int32)))
    graph.append("SELECT_V2", [column, *rows], out, schema.SelectV2OptionsT())
