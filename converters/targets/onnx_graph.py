"""Writing one recipe's model: the builder's float graph, its weights streamed from the checkpoint in the form the rules ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.architectures.base import FloatArray
from converters.checkpoint import TensorSource
from converters.rule import Activations, Rule
from converters.spec import ModelSpec
from converters.targets.onnx_codes import Codes, kept, pack_codes, pack_zero_points, quantize_rows, zero_point_bytes
from converters.targets.onnx_data import DATA_SUFFIX, DataFile, Tensor
from converters.targets.onnx_matmul import Nodes, Stored, look_up, multiply
from converters.targets.onnx_names import EMBEDDING, HEAD, hf_name, is_matrix, is_rope_table

MODEL_NAME = "model.onnx"
SCALE_NAME = "embedding_scale"
LOOKUP, LOOKUP_TRANSPOSE, LOOKUP_SCALE = "/model/embed_tokens/Gather", "/model/embed_tokens/Transpose", "/model/embed_tokens/Mul"
CHUNK_WEIGHTS = 2**22
RuleOf = Callable[[str, tuple[int, ...]], Rule | None]


class ModelWriter:
    """One model in the making.

    Args:
        graph: onnx.ModelProto whose initializers have no data; it is changed.
        spec: The checkpoint's.
        tensors: Where weights come from.
        rule_of: The rule of a tensor by Hugging Face name and shape, one `onnx_codes.refusal` has nothing against.
        rope: Name -> rotary table.
    """

    def __init__(self, graph: Any, spec: ModelSpec, tensors: TensorSource, rule_of: RuleOf, rope: dict[str, FloatArray]) -> None:
        self._model, self._spec, self._tensors, self._rule_of, self._rope = graph, spec, tensors, rule_of, rope
        self._initializers: list[Any] = []
        self._nodes: list[Any] = []
        self._group_sums: dict[tuple[str, int], str] = {}
        self._table: Stored | Tensor | None = None

    def write(self, folder: Path, on_tensor: Callable[[], None] = lambda: None) -> Path:
        """Write `model.onnx` and `model.onnx.data` into an existing folder.

        Args:
            folder: Where.
            on_tensor: Called when one of the checkpoint's tensors has been written.

        Raises:
            ValueError: A rule does not fit a tensor; its text names it.
            FormatError: A tensor of the source is damaged.
        """
        import onnx

        path, graph = folder / MODEL_NAME, self._model.graph
        declared = {tensor.name for tensor in graph.initializer}
        with DataFile(path.with_name(MODEL_NAME + DATA_SUFFIX)) as data:
            for node in graph.node:
                self._add(node, declared, data, on_tensor)
        del graph.node[:], graph.initializer[:]
        read = {name for node in self._nodes for name in node.input}
        graph.node.extend(node for node in self._nodes if node.op_type != "Constant" or node.output[0] in read)
        graph.initializer.extend(self._initializers)
        onnx.save(self._model, path)
        return path

    def _add(self, node: Any, declared: set[str], data: DataFile, on_tensor: Callable[[], None]) -> None:
        """Take over one node, what it reads written first; matmuls and lookups in the form of their weights."""
        if node.name == LOOKUP_TRANSPOSE:
            return
        matrix = next((name for name in node.input if name in declared and is_matrix(name)), None)
        if node.name == LOOKUP:
            self._add_lookup(node, data)
        elif matrix is not None:
            self._add_matmul(node, hf_name(matrix, self._spec), data)
        else:
            for name in node.input:
                if name in declared:
                    declared.remove(name)
                    self._write_vector(name, data)
                    on_tensor()
            if node.name == LOOKUP_SCALE:
                self._set_scale(node)
            self._nodes.append(node)
            return
        on_tensor()

    def _write_vector(self, name: str, data: DataFile) -> None:
        if is_rope_table(name):
            values = self._rope[name]
        else:
            values = self._tensors.load(hf_name(name, self._spec))
            values = values + np.float32(self._spec.norm.weight_offset) if "norm" in name else values
        self._initializers.append(data.array(name, values.astype(np.float32)).proto())

    def _set_scale(self, node: Any) -> None:
        """Multiply embeddings by what the checkpoint does: the builder rounds it to two digits."""
        import onnx

        scale = np.array(self._spec.embedding_scale, np.float32)
        self._initializers.append(onnx.numpy_helper.from_array(scale, SCALE_NAME))
        del node.input[1:]
        node.input.append(SCALE_NAME)

    def _add_lookup(self, node: Any, data: DataFile) -> None:
        nodes = Nodes(node.name)
        token_ids, output = node.input[1], node.output[0]
        table = self._write_matrix(EMBEDDING, data, is_transposed=False)
        if isinstance(table, Tensor):
            nodes.add("Gather", [nodes.as_float32(table), token_ids], output)
        else:
            look_up(nodes, token_ids, table, output)
        self._table = table
        self._take(nodes)

    def _add_matmul(self, node: Any, name: str, data: DataFile) -> None:
        nodes = Nodes(node.name)
        is_shared = name == EMBEDDING
        weight = self._table if is_shared else self._write_matrix(name, data, is_transposed=name != HEAD)
        if isinstance(weight, Tensor):
            right = nodes.as_float32(weight)
            if name in (EMBEDDING, HEAD):  # tables are stored by rows, which stream; linears as the kernel reads them
                right = nodes.add("Transpose", [right], perm=[1, 0])
            nodes.add("MatMul", [node.input[0], right], node.output[0])
        else:
            assert weight is not None
            multiply(nodes, node.input[0], weight, node.output[0], self._group_sums)
        self._take(nodes)

    def _take(self, nodes: Nodes) -> None:
        self._nodes += nodes.nodes
        self._initializers += nodes.constants

    def _write_matrix(self, name: str, data: DataFile, *, is_transposed: bool) -> Stored | Tensor:
        shape = self._tensors.shape(name)
        rule = self._rule_of(name, shape)
        assert rule is not None and len(shape) == 2, name
        try:
            if rule.is_float:
                return self._write_float(name, rule, shape, data, is_transposed)
            return self._write_codes(name, rule, (shape[0], shape[1]), data)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    def _write_float(self, name: str, rule: Rule, shape: tuple[int, ...], data: DataFile, is_transposed: bool) -> Tensor:
        tensor = data.tensor(name, f"float{rule.bits}", shape[::-1] if is_transposed else shape)
        blocks = iter([self._tensors.load(name).T]) if is_transposed else self._tensors.blocks(name)
        for block in blocks:
            if rule.bits == 16 and np.abs(block).max() > np.finfo(np.float16).max:
                raise ValueError(f"a weight of {float(np.abs(block).max()):.3g} is beyond float16")
            tensor.append(block)
        self._initializers.append(tensor.proto())
        return tensor

    def _write_codes(self, name: str, rule: Rule, shape: tuple[int, int], data: DataFile) -> Stored:
        parts = self._kept_parts(name) if rule.is_keep else self._quantized_parts(name, rule)
        first = next(parts)
        activations = Activations.INT8_DYNAMIC if rule.is_keep else rule.activations
        stored = Stored(first.bits, first.group_size, shape, activations)
        row_bytes = shape[1] * stored.bits // 8
        codes = data.tensor(f"{name}.codes", "uint8", (shape[0], stored.n_groups, row_bytes // stored.n_groups))
        scales = data.tensor(f"{name}.scales", _least_float(first.scales, rule), (shape[0], stored.n_groups))
        tensors = [codes, scales]
        zero_points = offsets = None
        if first.zero_points is not None:
            zero_points = data.tensor(f"{name}.zero_points", "uint8", (shape[0], zero_point_bytes(stored.n_groups, stored.bits)))
            tensors.append(zero_points)
        if first.offsets is not None:
            offsets = data.tensor(f"{name}.offsets", _least_float(first.offsets, rule), (shape[0], stored.n_groups))
            tensors.append(offsets)
        for part in _chained(first, parts):
            codes.append(pack_codes(part))
            scales.append(part.scales)
            if zero_points is not None:
                zero_points.append(_there(pack_zero_points(part)))
            if offsets is not None:
                offsets.append(_there(part.offsets))
        self._initializers += [tensor.proto() for tensor in tensors]
        stored.codes, stored.scales, stored.offsets = codes.name, scales, offsets
        stored.zero_points = zero_points.name if zero_points is not None else None
        stored.offset_code = 2 ** (first.bits - 1) - first.base
        if name == EMBEDDING:
            stored.table_codes = f"{name}.rows"
            self._initializers.append(codes.proto(stored.table_codes, (shape[0], row_bytes)))
        return stored

    def _kept_parts(self, name: str) -> Iterator[Codes]:
        blocks = self._tensors.stored(name)
        if blocks is None:
            raise ValueError("the source has no codes of it to keep")
        yield kept(blocks)

    def _quantized_parts(self, name: str, rule: Rule) -> Iterator[Codes]:
        for block in self._tensors.blocks(name):
            step = max(1, CHUNK_WEIGHTS // block.shape[1])
            for start in range(0, len(block), step):
                yield quantize_rows(block[start : start + step], rule)


def _least_float(values: FloatArray, rule: Rule) -> str:
    """The smallest type that holds these very values; what `quantize_rows` made are float16 values in every part."""
    if not rule.is_keep:
        return "float16"
    with np.errstate(over="ignore"):
        return "float16" if np.array_equal(values.astype(np.float16).astype(np.float32), values) else "float32"


def _chained(first: Codes, rest: Iterator[Codes]) -> Iterator[Codes]:
    yield first
    yield from rest


def _there(values: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    assert values is not None
    return values
