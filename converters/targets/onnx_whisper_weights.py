"""A checkpoint's tensors as one ONNX graph stores and uses them: floats by MatMul, codes by MatMulNBits.

Everything lies in the graph's own file, without a data file beside it: an app that reads its models out of an Android package
hands them to onnxruntime as bytes, and bytes have no neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.checkpoint import TensorSource
from converters.rule import Rule
from converters.targets.onnx_codes import pack_codes, quantize_rows
from converters.targets.onnx_matmul import DOMAIN, Nodes, Stored, multiply

RuleOf = Callable[[str, Sequence[int]], Rule | None]


@dataclass(frozen=True)
class _Scales:
    """A written tensor of scales, as `Nodes.as_float32` takes one."""

    name: str
    dtype: np.dtype[Any]


class Weights:
    """Tensors of one graph, each stored once, in the form its rule asks for.

    Args:
        nodes: Where the nodes that use them are appended.
        tensors: The checkpoint's.
        rule_of: The rule of a tensor by name and shape; None for what stays in float32.

    Raises:
        ValueError: From any method: a matrix does not go into its rule's groups, or a value is beyond float16.
    """

    def __init__(self, nodes: Nodes, tensors: TensorSource, rule_of: RuleOf) -> None:
        self.nodes = nodes
        self.initializers: list[Any] = []
        self._tensors, self._rule_of = tensors, rule_of
        self._names = frozenset(tensors.names())
        self._floats: dict[str, str] = {}
        self._stored: dict[str, Stored] = {}

    def plain(self, name: str) -> str:
        """A tensor in float32 as the checkpoint has it: vectors, convolutions, position tables."""
        if name not in self._floats:
            self._floats[name] = self._add(name, self._tensors.load(name))
        return self._floats[name]

    def linear(self, name: str, x: str) -> str:
        """x (1, n, in_features) times the layer's matrix, with its bias where it has one."""
        weight = f"{name}.weight"
        rule = self._rule(weight)
        if rule is None or rule.is_float:
            columns = self._float(weight, rule, is_transposed=True)
            product = self.nodes.add("MatMul", [x, columns])
        else:
            product = self._multiply(weight, rule, x)
        bias = f"{name}.bias"
        return self.nodes.add("Add", [product, self.plain(bias)]) if bias in self._names else product

    def norm(self, name: str, x: str, epsilon: float) -> str:
        """LayerNorm over the last axis."""
        inputs = [x, self.plain(f"{name}.weight"), self.plain(f"{name}.bias")]
        return self.nodes.add("LayerNormalization", inputs, axis=-1, epsilon=epsilon)

    def look_up(self, name: str, token_ids: str) -> str:
        """Rows of a table, (1, n_tokens, in_features) float32.

        Rows of codes are gathered first and turned into floats afterwards, so that lookup and head read the same bytes: the two
        operators want the table in two shapes, and onnxruntime would keep a copy of it for the second.
        """
        rule = self._rule(name)
        if rule is None or rule.is_float:
            return self.nodes.add("Gather", [self._float(name, rule), token_ids], axis=0)
        stored, nodes = self._quantized(name, rule), self.nodes
        flat = nodes.add("Reshape", [token_ids, nodes.constant(np.array([-1]))])
        n_bytes = stored.shape[1] * stored.bits // 8
        rows = nodes.add("Reshape", [nodes.add("Gather", [stored.codes, flat], axis=0), nodes.constant(np.array([-1, n_bytes]))])
        scales = nodes.add("Gather", [nodes.as_float32(stored.scales), flat], axis=0)
        count = nodes.add("Squeeze", [nodes.add("Shape", [flat])])
        index = nodes.add("Range", [nodes.constant(np.array(0)), count, nodes.constant(np.array(1))])
        attributes: dict[str, Any] = {"bits": stored.bits, "block_size": stored.group_size, "gather_axis": 0, "quantize_axis": 1}
        found = nodes.add("GatherBlockQuantized", [rows, index, scales], domain=DOMAIN, **attributes)
        return nodes.add("Unsqueeze", [found, nodes.constant(np.array([0]))])

    def head(self, name: str, x: str, output: str) -> None:
        """`output` (1, n, vocab_size): x (1, n, hidden_size) times a table that is also looked up in."""
        rule = self._rule(name)
        if rule is not None and not rule.is_float:
            self._multiply(name, rule, x, output)
            return
        # the table on the left, as it is stored: on the right onnxruntime would keep a transposed copy of it
        columns = self.nodes.add("Transpose", [x], perm=[0, 2, 1])
        product = self.nodes.add("MatMul", [self._float(name, rule), columns])
        self.nodes.add("Transpose", [product], output, perm=[0, 2, 1])

    def _rule(self, name: str) -> Rule | None:
        return self._rule_of(name, self._tensors.shape(name))

    def _float(self, name: str, rule: Rule | None, *, is_transposed: bool = False) -> str:
        """A matrix in float32; stored as float16 it is cast, which onnxruntime does once, when it opens the model."""
        if name in self._floats:
            return self._floats[name]
        values = self._tensors.load(name)
        if rule is not None and rule.bits == 16:
            values = _as_float16(name, values)
        stored = self._add(name, np.ascontiguousarray(values.T) if is_transposed else values)
        self._floats[name] = self.nodes.as_float32(_Scales(stored, values.dtype))
        return self._floats[name]

    def _multiply(self, name: str, rule: Rule, x: str, output: str = "") -> str:
        place = output or f"{self.nodes.name}/{name}/product"
        multiply(self.nodes, x, self._quantized(name, rule), place, {})
        return place

    def _quantized(self, name: str, rule: Rule) -> Stored:
        if name in self._stored:
            return self._stored[name]
        codes = quantize_rows(self._tensors.load(name), rule)
        n_rows, width = codes.codes.shape
        stored = Stored(codes.bits, codes.group_size, (n_rows, width), rule.activations)
        stored.codes = self._add(f"{name}.codes", pack_codes(codes))
        stored.scales = _Scales(self._add(f"{name}.scales", codes.scales.astype(np.float16)), np.dtype(np.float16))
        self._stored[name] = stored
        return stored

    def _add(self, name: str, values: npt.NDArray[Any]) -> str:
        import onnx

        self.initializers.append(onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name


def _as_float16(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float16)
    if not np.isfinite(rounded).all():
        raise ValueError(f"{name} holds {float(np.abs(values).max()):.3g}, beyond float16")
    return rounded
