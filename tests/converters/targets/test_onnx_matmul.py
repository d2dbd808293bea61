"""Every form of stored weights through real onnxruntime: a product and a lookup must be those of the dequantized matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.rule import Activations, Algorithm, Granularity, Rule
from converters.targets.onnx_codes import Codes, kept, pack_codes, pack_zero_points, quantize_rows
from converters.targets.onnx_data import DataFile
from converters.targets.onnx_matmul import Nodes, Stored, look_up, multiply
from tests.converters.targets.test_onnx_codes import blocks

N_ROWS, N_COLUMNS = 6, 256


def quantized(bits: int, symmetric: bool) -> Codes:
    weight = np.random.default_rng(bits).standard_normal((N_ROWS, N_COLUMNS)).astype(np.float32)
    return quantize_rows(weight, Rule(bits, Algorithm.ROUND, Granularity.BLOCKWISE, 32, symmetric))


FORMS: dict[str, Callable[[], Codes]] = {
    "int4": lambda: quantized(4, True),
    "int4 affine": lambda: quantized(4, False),
    "int8": lambda: quantized(8, True),
    "int8 affine": lambda: quantized(8, False),
    **{kind: lambda kind=kind: kept(blocks(kind)) for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K")},  # type: ignore[misc]
}


def session(folder: Path, codes: Codes, activations: Activations) -> Any:
    """A graph with `product` = x times the matrix, transposed, twice, and `rows` looked up by `ids`."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    n_rows, n_columns = codes.codes.shape
    stored = Stored(codes.bits, codes.group_size, (n_rows, n_columns), activations)
    with DataFile(folder / "model.onnx.data") as data:
        packed = data.array("codes", pack_codes(codes))
        tensors = [packed, data.array("scales", codes.scales)]
        stored.codes, stored.scales, stored.table_codes = "codes", tensors[1], "rows_of_codes"
        if codes.zero_points is not None:
            tensors.append(data.array("zero_points", pack_zero_points(codes)))
            stored.zero_points = "zero_points"
        if codes.offsets is not None:
            stored.offsets = data.array("offsets", codes.offsets)
            tensors.append(stored.offsets)
    stored.offset_code = 2 ** (codes.bits - 1) - codes.base
    first, second, table, sums = Nodes("first"), Nodes("second"), Nodes("table"), dict[tuple[str, int], str]()
    multiply(first, "x", stored, "product", sums)
    multiply(second, "x", stored, "again", sums)
    look_up(table, "ids", stored, "rows")
    initializers = [tensor.proto() for tensor in tensors]
    initializers += [packed.proto("rows_of_codes", (n_rows, n_columns * codes.bits // 8))]
    initializers += [*first.constants, *second.constants, *table.constants]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "n", n_columns])]
    inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "n_ids"]))
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("product", "again", "rows")]
    graph = helper.make_graph([*first.nodes, *second.nodes, *table.nodes], "forms", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "model.onnx")
    return onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])


def relative_error(wanted: np.ndarray, got: np.ndarray) -> float:
    return float(np.abs(wanted - got).max() / np.abs(wanted).max())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("activations", "tolerance"), [(Activations.FLOAT32, 1e-5), (Activations.INT8_DYNAMIC, 3e-2)])
def test_a_product_is_that_of_the_dequantized_matrix(form: str, activations: Activations, tolerance: float, tmp_path: Path) -> None:
    codes = FORMS[form]()
    n_columns = codes.codes.shape[1]
    x = np.random.default_rng(3).standard_normal((1, 7, n_columns)).astype(np.float32)
    opened = session(tmp_path, codes, activations)
    product, again = opened.run(["product", "again"], {"x": x, "ids": np.zeros((1, 1), np.int64)})
    wanted = x @ codes.dequantized().T
    assert relative_error(wanted, product) < tolerance
    assert np.array_equal(product, again), "the second matrix of an input shares its sums of groups"
    wrong = x @ replace(codes, scales=codes.scales * np.float32(1.5)).dequantized().T
    assert relative_error(wrong, product) > 2 * tolerance
    if activations is Activations.INT8_DYNAMIC:
        assert relative_error(wanted, product) > 1e-6, "activations were not quantized"


@pytest.mark.parametrize("form", FORMS)
def test_a_lookup_gives_rows_of_the_dequantized_matrix(form: str, tmp_path: Path) -> None:
    codes = FORMS[form]()
    x = np.zeros((1, 1, codes.codes.shape[1]), np.float32)
    [rows] = session(tmp_path, codes, Activations.FLOAT32).run(["rows"], {"x": x, "ids": np.array([[5, 0, 5]])})
    wanted = codes.dequantized()
    np.testing.assert_allclose(rows[0], wanted[[5, 0, 5]], rtol=0, atol=2e-6 * float(np.abs(wanted).max()) * 16)
    assert np.abs(rows[0] - wanted[[4, 0, 5]]).max() > 1e-3


def test_an_offset_counted_from_the_wrong_code_is_seen(tmp_path: Path) -> None:
    codes = kept(blocks("Q4_1"))
    x = np.ones((1, 1, codes.codes.shape[1]), np.float32)
    opened = session(tmp_path, replace(codes, base=1), Activations.FLOAT32)
    [product] = opened.run(["product"], {"x": x, "ids": np.zeros((1, 1), np.int64)})
    assert relative_error(x @ codes.dequantized().T, product) > 1e-3
