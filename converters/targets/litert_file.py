"""Reading what a .tflite really stores, so that a recipe that silently did nothing cannot pass."""

from __future__ import annotations

import mmap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SMALL_BYTES = 128  # shapes, axes and single scalars, which are no weights
_BITS = {0: 32, 1: 16, 2: 32, 4: 64, 9: 8, 17: 4, 18: 2}  # tflite.TensorType: f32, f16, i32, i64, i8, i4, i2
_NAMES = {0: "float32", 1: "float16", 2: "int32", 4: "int64", 9: "int8", 17: "int4", 18: "int2"}


@dataclass(frozen=True)
class StoredWeights:
    """What the constant buffers of a .tflite hold.

    Args:
        bits: Bits of all weight buffers and of the per-channel scales; a shared buffer counts once.
        weights_by_type: Number of weights stored as each type, e.g. {"int8": 134_000_000, "float32": 70_000}.
        n_scales: Per-channel scales in quantization parameters (blockwise scales are buffers of their own).
    """

    bits: int
    weights_by_type: dict[str, int]
    n_scales: int


def stored_weights(path: Path) -> StoredWeights:
    """Walk the flatbuffer of a .tflite this project has just written; nothing is loaded but the tables."""
    from ai_edge_litert import schema_py_generated as schema

    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        model = schema.Model.GetRootAs(data, 0)
        sizes = {}
        for index in range(model.BuffersLength()):
            buffer = model.Buffers(index)
            sizes[index] = max(buffer.Size(), 0 if buffer.DataIsNone() else buffer.DataLength())
        seen: set[int] = set()
        by_type: Counter[str] = Counter()
        n_scales = 0
        for graph_index in range(model.SubgraphsLength()):
            graph = model.Subgraphs(graph_index)
            for tensor_index in range(graph.TensorsLength()):
                tensor = graph.Tensors(tensor_index)
                if tensor.Buffer() in seen or sizes[tensor.Buffer()] < SMALL_BYTES:
                    continue
                seen.add(tensor.Buffer())
                kind = tensor.Type()
                by_type[_NAMES.get(kind, f"type {kind}")] += sizes[tensor.Buffer()] * 8 // _BITS.get(kind, 8)
                quantization = tensor.Quantization()
                n_scales += quantization.ScaleLength() if quantization is not None else 0
                del tensor, quantization
            del graph
        bits = 8 * sum(sizes[index] for index in seen) + 32 * n_scales
        del model, buffer
    return StoredWeights(bits, dict(by_type), n_scales)
