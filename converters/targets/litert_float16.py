"""Weights of a float .tflite cast to float16, each stored once for all signatures.

ai-edge-quantizer has a cast too, and it takes minutes: it casts every weight twice for each signature and then compares all
the copies. Here a weight is cast once, and each graph turns it back with one DEQUANTIZE, which the runtime carries out while
it packs the weights. The graph that comes out is the quantizer's.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.targets.litert_model_file import ModelFile
from toolkit.errors import ToolkitError

WEIGHT_INPUT = 1  # of FULLY_CONNECTED and EMBEDDING_LOOKUP alike


def cast_to_float16(model: Path, out: Path) -> None:
    """Write `out`: `model` with the weights of its linears and lookups in float16.

    Raises:
        ToolkitError: A weight is too large for float16.
    """
    file = ModelFile.open(model)
    cast: dict[int, int] = {}
    for graph in file.model.subgraphs:
        for index, consumers in _weights(file, graph).items():
            tensor = graph.tensors[index]
            if tensor.buffer not in cast:
                cast[tensor.buffer] = file.add_constant(_float16(file.constant(tensor.buffer), tensor.name))
            _dequantize(file, graph, index, cast[tensor.buffer], consumers)
    file.drop_unused()
    file.write(out)


def _weights(file: ModelFile, graph: Any) -> dict[int, list[Any]]:
    """Float32 constants that linears and lookups of a graph take as weights: tensor index -> those operators."""
    from ai_edge_litert import schema_py_generated as schema

    kinds = (schema.BuiltinOperator.FULLY_CONNECTED, schema.BuiltinOperator.EMBEDDING_LOOKUP)
    found: dict[int, list[Any]] = defaultdict(list)
    for operator in graph.operators:
        if file.builtin_of(operator) in kinds:
            index = int(operator.inputs[WEIGHT_INPUT])
            tensor = graph.tensors[index]
            if tensor.type == schema.TensorType.FLOAT32 and file.constant(tensor.buffer).size:
                found[index].append(operator)
    return found


def _float16(content: npt.NDArray[np.uint8], name: bytes | str) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore"):
        values = content.view(np.float32).astype(np.float16)
    if not np.isfinite(values).all():
        text = name.decode(errors="replace") if isinstance(name, bytes) else name
        raise ToolkitError(
            "the weights do not fit in float16",
            why=f"{text} holds values above {float(np.finfo(np.float16).max):g}",
            fix="use --recipe fp32 or int8",
        )
    return values


def _dequantize(file: ModelFile, graph: Any, index: int, buffer: int, consumers: list[Any]) -> None:
    """Let a tensor be the float16 weight, and its consumers read a new float32 tensor made of it just before the first of them."""
    from ai_edge_litert import schema_py_generated as schema

    weight = graph.tensors[index]
    name = weight.name if isinstance(weight.name, bytes) else weight.name.encode()
    graph.tensors.append(schema.TensorT(shape=weight.shape, type=schema.TensorType.FLOAT32, buffer=0, name=name + b"_dequant"))
    weight.type, weight.buffer = schema.TensorType.FLOAT16, buffer
    for operator in consumers:
        inputs = np.array(operator.inputs, np.int32)
        inputs[WEIGHT_INPUT] = len(graph.tensors) - 1
        operator.inputs = inputs
    # Version 2 of the operator is the one that takes float16.
    opcode = file.opcode(schema.BuiltinOperator.DEQUANTIZE, version=2)
    made = schema.OperatorT(opcodeIndex=opcode, inputs=np.array([index], np.int32), outputs=np.array([len(graph.tensors) - 1], np.int32))
    first = next(at for at, operator in enumerate(graph.operators) if any(operator is each for each in consumers))
    graph.operators.insert(first, made)
