"""The nodes that stand where the float graph had a matmul or a table lookup, for weights in any form.

Scales are stored as float16 and cast: onnxruntime computes what depends on constants alone when it opens a model, so the cast
costs bytes of memory, none of the file and no time. A source's offsets take one more, small, matmul: with m the middle code,
a row's sum of x (s (c - b) + o) is what MatMulNBits gives plus, for each group, the group's sum of x times o + s (m - b).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.rule import Activations

DOMAIN = "com.microsoft"
# MatMulNBits' accuracy_level: the least precise type its kernel may turn activations into. 8-bit codes are slow at any other.
ACCURACY_LEVELS = {Activations.FLOAT32: 1, Activations.INT8_DYNAMIC: 4}


class Nodes:
    """Nodes and small constants that take the place of one node of the graph."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, inputs: Sequence[str], output: str = "", domain: str = "", **attributes: Any) -> str:
        """Append a node and return its output, which gets a name of its own if none is given."""
        import onnx

        name = f"{self.name}/{kind}_{len(self.nodes)}"
        made = onnx.helper.make_node(kind, list(inputs), [output or name], name=name, domain=domain, **attributes)
        self.nodes.append(made)
        return output or name

    def constant(self, values: npt.NDArray[Any]) -> str:
        """A small constant kept in the graph itself."""
        import onnx

        name = f"{self.name}/constant_{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(values, name))
        return name

    def as_float32(self, tensor: Any) -> str:
        """A stored tensor in float32: its own name, or a cast of it."""
        import onnx

        if tensor.dtype.name == "float32":
            return str(tensor.name)
        return self.add("Cast", [tensor.name], to=onnx.TensorProto.FLOAT)


class Stored:
    """A quantized matrix in the data file, by what its nodes need: shapes as `onnx_codes.Codes` has them, codes packed.

    `codes` and `zero_points` may go by another name and shape in lookups: `table_codes` is (n_rows, bytes of a row).
    """

    def __init__(self, bits: int, group_size: int, shape: tuple[int, int], activations: Activations) -> None:
        self.bits, self.group_size, self.shape, self.activations = bits, group_size, shape, activations
        self.codes = self.table_codes = ""
        self.zero_points: str | None = None
        self.scales: Any = None
        self.offsets: Any = None
        self.offset_code = 0  # the middle code less the code that stands for the offset

    @property
    def n_groups(self) -> int:
        return self.shape[1] // self.group_size


def multiply(nodes: Nodes, x: str, stored: Stored, output: str, group_sums: dict[tuple[str, int], str]) -> None:
    """x (..., in_features) times the matrix, transposed: `output` is (..., out_features) float32.

    Args:
        nodes: Where to append.
        x: The activations.
        stored: The matrix.
        output: Name of the result.
        group_sums: Sums of activations over groups that other matrices of the same input have asked for; added to.
    """
    inputs = [x, stored.codes, nodes.as_float32(stored.scales), *([stored.zero_points] if stored.zero_points else [])]
    attributes: dict[str, Any] = {
        "K": stored.shape[1],
        "N": stored.shape[0],
        "bits": stored.bits,
        "block_size": stored.group_size,
        "accuracy_level": ACCURACY_LEVELS[stored.activations],
    }
    if stored.offsets is None:
        nodes.add("MatMulNBits", inputs, output, DOMAIN, **attributes)
        return
    product = nodes.add("MatMulNBits", inputs, domain=DOMAIN, **attributes)
    sums = _group_sums(nodes, x, stored, group_sums)
    columns = nodes.add("Transpose", [_centred_offsets(nodes, stored, inputs[2])], perm=[1, 0])
    nodes.add("Add", [product, nodes.add("MatMul", [sums, columns])], output)


def look_up(nodes: Nodes, token_ids: str, stored: Stored, output: str) -> None:
    """Rows of a table: `output` is (batch, n_tokens, in_features) float32."""
    inputs = [stored.table_codes, token_ids, nodes.as_float32(stored.scales), *([stored.zero_points] if stored.zero_points else [])]
    attributes: dict[str, Any] = {"bits": stored.bits, "block_size": stored.group_size, "gather_axis": 0, "quantize_axis": 1}
    if stored.offsets is None:
        nodes.add("GatherBlockQuantized", inputs, output, DOMAIN, **attributes)
        return
    rows = nodes.add("GatherBlockQuantized", inputs, domain=DOMAIN, **attributes)
    grouped = nodes.add("Reshape", [rows, nodes.constant(np.array([0, 0, stored.n_groups, stored.group_size]))])
    offsets = nodes.add("Gather", [_centred_offsets(nodes, stored, inputs[2]), token_ids], axis=0)
    moved = nodes.add("Add", [grouped, nodes.add("Unsqueeze", [offsets, nodes.constant(np.array([-1]))])])
    nodes.add("Reshape", [moved, nodes.constant(np.array([0, 0, stored.shape[1]]))], output)


def _centred_offsets(nodes: Nodes, stored: Stored, scales: str) -> str:
    """What a group's offset is beside codes counted from the middle, (n_rows, n_groups) float32."""
    moved = nodes.add("Mul", [scales, nodes.constant(np.array(stored.offset_code, np.float32))])
    return nodes.add("Add", [moved, nodes.as_float32(stored.offsets)])


def _group_sums(nodes: Nodes, x: str, stored: Stored, known: dict[tuple[str, int], str]) -> str:
    key = (x, stored.group_size)
    if key not in known:
        groups = nodes.add("Reshape", [x, nodes.constant(np.array([0, 0, stored.n_groups, stored.group_size]))])
        known[key] = nodes.add("ReduceSum", [groups, nodes.constant(np.array([-1]))], keepdims=0)
    return known[key]
