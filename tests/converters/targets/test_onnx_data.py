"""The data file: rows where the graph says they are, and nothing left half written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from converters.targets.onnx_data import ALIGNMENT, LARGE_ALIGNMENT, LARGE_BYTES, DataFile


def test_rows_written_in_turns_are_read_back_by_what_the_graph_says(tmp_path: Path) -> None:
    import onnx
    from onnx.external_data_helper import load_external_data_for_tensor

    path = tmp_path / "model.onnx.data"
    first, second = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(40, dtype=np.uint8).reshape(4, 10)
    with DataFile(path) as data:
        a, b = data.tensor("a", "float16", (4, 3)), data.tensor("b", "uint8", (4, 10))
        for start in (0, 2):
            b.append(second[start : start + 2])
            a.append(first[start : start + 2])
        protos = [a.proto(), b.proto(), b.proto("b flat", (40,))]
    for proto, wanted in zip(protos, (first, second, second.reshape(-1)), strict=True):
        load_external_data_for_tensor(proto, str(tmp_path))
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(proto), wanted)
    assert path.stat().st_size == ALIGNMENT + 40, "the second name of b takes no bytes"


def test_a_large_tensor_starts_where_a_mapping_may(tmp_path: Path) -> None:
    with DataFile(tmp_path / "data") as data:
        data.array("small", np.zeros(3, np.uint8))
        large = data.array("large", np.zeros(LARGE_BYTES, np.uint8))
    assert large.offset == LARGE_ALIGNMENT


def test_a_tensor_that_is_not_whole_fails_the_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 tensors are not whole, first b"), DataFile(tmp_path / "data") as data:
        data.array("a", np.zeros(2, np.float32))
        data.tensor("b", "float32", (2, 2)).append(np.zeros((1, 2), np.float32))


def test_rows_too_many_or_too_long_are_refused(tmp_path: Path) -> None:
    for rows in (np.zeros((3, 2), np.float32), np.zeros((2, 3), np.float32)):
        with pytest.raises(ValueError, match="do not fit"), DataFile(tmp_path / "data") as data:
            data.tensor("a", "float32", (2, 2)).append(rows)


def test_an_error_inside_is_not_replaced_by_another(tmp_path: Path) -> None:
    with pytest.raises(KeyError), DataFile(tmp_path / "data") as data:
        data.tensor("a", "float32", (2, 2))
        raise KeyError
