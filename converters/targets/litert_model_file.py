"""A .tflite opened to be edited: its graphs as objects, its constants on disk until they are looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

LARGE_BYTES = 1024  # constants from this size on are written behind the flatbuffer, which may then exceed 2 GiB
ALIGNMENT = 16
_EMPTY = np.zeros(0, np.uint8)


@dataclass
class ModelFile:
    """The tables of a .tflite (`ai_edge_litert.schema_py_generated.ModelT`) and where its constants lie.

    Args:
        model: The tables. A buffer's data is an array, or None with an offset into the file.
        source: The file's bytes, mapped.
    """

    model: Any
    source: npt.NDArray[np.uint8]
    _opcodes: dict[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> ModelFile:
        """Open a file this project has written; its hash must have been checked."""
        from ai_edge_litert import schema_py_generated as schema

        source = np.memmap(path, dtype=np.uint8, mode="r")
        return cls(schema.ModelT.InitFromObj(schema.Model.GetRootAs(source, 0)), source)

    def constant(self, buffer: int) -> npt.NDArray[np.uint8]:
        """The bytes of a buffer; empty for one without data."""
        entry = self.model.buffers[buffer]
        if isinstance(entry.data, np.ndarray):
            return entry.data
        return self.source[entry.offset : entry.offset + entry.size] if entry.size else _EMPTY

    def add_constant(self, content: npt.NDArray[Any]) -> int:
        """Add a buffer with an array's bytes; returns its index."""
        from ai_edge_litert import schema_py_generated as schema

        self.model.buffers.append(schema.BufferT(data=np.ascontiguousarray(content).reshape(-1).view(np.uint8)))
        return len(self.model.buffers) - 1

    def opcode(self, builtin: int, version: int = 1) -> int:
        """Index of an operator code, added if the model has none of it. An existing one keeps its version."""
        from ai_edge_litert import schema_py_generated as schema

        if not self._opcodes:
            self._opcodes = {(code.builtinCode, 0): index for index, code in enumerate(self.model.operatorCodes)}
        key = (builtin, 0)
        if key not in self._opcodes:
            deprecated = min(builtin, int(schema.BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES))
            code = schema.OperatorCodeT(deprecatedBuiltinCode=deprecated, builtinCode=builtin, version=version)
            self.model.operatorCodes.append(code)
            self._opcodes[key] = len(self.model.operatorCodes) - 1
        return self._opcodes[key]

    def builtin_of(self, operator: Any) -> int:
        """The `BuiltinOperator` of one operator of a graph."""
        return int(self.model.operatorCodes[operator.opcodeIndex].builtinCode)

    def drop_unused(self) -> None:
        """Remove tensors that no operator, signature or scale refers to, and empty the buffers that are then unused."""
        for index, graph in enumerate(self.model.subgraphs):
            _drop_unused_tensors(graph, [each for each in self.model.signatureDefs or [] if each.subgraphIndex == index])
        used = {tensor.buffer for graph in self.model.subgraphs for tensor in graph.tensors}
        used |= {entry.buffer for entry in self.model.metadata or []}
        for index in range(1, len(self.model.buffers)):
            if index not in used:
                buffer = self.model.buffers[index]
                buffer.data, buffer.offset, buffer.size = None, 0, 0

    def write(self, path: Path) -> None:
        """Write the file: tables first, large constants behind them, each at a multiple of 16 bytes."""
        from ai_edge_litert import schema_py_generated as schema
        from ai_edge_litert.tools import flatbuffer_utils

        large: dict[int, npt.NDArray[np.uint8]] = {}
        for index, buffer in enumerate(self.model.buffers):
            content = self.constant(index)
            if content.size >= LARGE_BYTES:
                large[index] = content
                buffer.data, buffer.offset, buffer.size = None, 1, 1  # room for the real numbers; zeros would be left out
        tables = _packed(self.model)
        packed = schema.Model.GetRootAs(tables, 0)
        at = _aligned(len(tables))
        places = {}
        for index, content in large.items():
            flatbuffer_utils.update_packed_buffer(packed.Buffers(index), offset=at, size=content.size)
            places[index] = at
            at = _aligned(at + content.size)
        with path.open("wb") as stream:
            stream.write(tables)
            for index, content in large.items():
                stream.write(bytes(places[index] - stream.tell()))
                stream.write(content.data)
            stream.write(bytes(at - stream.tell()))
        for index, content in large.items():  # the object stays usable
            self.model.buffers[index].data, self.model.buffers[index].offset, self.model.buffers[index].size = content, 0, 0


def _packed(model: Any) -> bytearray:
    """The tables as a flatbuffer in which equal texts and equal arrays are stored once.

    Four signatures name the same weights and repeat their scales; stored for each, that would be 10 MB of SmolLM2's 90.
    """
    import flatbuffers

    class Sharing(flatbuffers.Builder):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(2**20)
            self.stored: dict[tuple[str, bytes], int] = {}

        def CreateString(self, s: bytes | str, encoding: str = "utf-8", errors: str = "strict") -> int:
            key = ("text", s if isinstance(s, bytes) else s.encode(encoding, errors))
            if key not in self.stored:
                self.stored[key] = super().CreateString(s, encoding, errors)
            return self.stored[key]

        def CreateNumpyVector(self, x: npt.NDArray[Any]) -> int:
            key = (x.dtype.str, x.tobytes())
            if key not in self.stored:
                self.stored[key] = super().CreateNumpyVector(x)
            return self.stored[key]

    builder: Any = Sharing()
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    tables: bytearray = builder.Output()
    return tables


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def _drop_unused_tensors(graph: Any, signatures: list[Any]) -> None:
    ends = [entry for signature in signatures for entry in (*(signature.inputs or []), *(signature.outputs or []))]
    lists = [graph.inputs, graph.outputs]
    lists += [each for operator in graph.operators for each in (operator.inputs, operator.outputs)]
    used = {int(index) for each in lists for index in each if index >= 0} | {entry.tensorIndex for entry in ends}
    used |= {details.scales for index in used if (details := _blockwise(graph.tensors[index])) is not None}
    new = {old: at for at, old in enumerate(sorted(used))}
    graph.tensors = [graph.tensors[old] for old in sorted(used)]
    for tensor in graph.tensors:
        if (details := _blockwise(tensor)) is not None:
            details.scales = new[details.scales]
    for entry in ends:
        entry.tensorIndex = new[entry.tensorIndex]

    def renumbered(indices: Iterable[Any]) -> npt.NDArray[np.int32]:
        return np.array([new[int(old)] if old >= 0 else -1 for old in indices], np.int32)

    graph.inputs, graph.outputs = renumbered(graph.inputs), renumbered(graph.outputs)
    for operator in graph.operators:
        operator.inputs, operator.outputs = renumbered(operator.inputs), renumbered(operator.outputs)


def _blockwise(tensor: Any) -> Any:
    return getattr(tensor.quantization, "details", None)
