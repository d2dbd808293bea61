"""A signature copied from a lowered one must be what lowering it anew would have given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.targets.litert_signatures import add_signature_without

MODULE = """
module {
  func.func @score(%arg0: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) attributes {
      arg_attrs = [{tf_saved_model.index_path = ["tokens"]}],
      res_attrs = [{tf_saved_model.index_path = ["kv"]}, {tf_saved_model.index_path = ["logits"]}],
      tf.entry_function = {inputs = "score_tokens", outputs = "score_kv_output,score_logits_output"},
      tf_saved_model.exported_names = ["score"]} {
    %0 = "tfl.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = "tfl.neg"(%0) : (tensor<4xf32>) -> tensor<4xf32>
    %2 = "tfl.abs"(%1) : (tensor<4xf32>) -> tensor<4xf32>
    return %0, %2 : tensor<4xf32>, tensor<4xf32>
  }
}
"""


@pytest.fixture
def module() -> Iterator[Any]:
    from converters.targets.litert_export import stand_in_for_tensorflow

    stand_in_for_tensorflow()
    from litert_converter.mlir import ir
    from litert_torch import backend

    with backend.export_utils.create_ir_context(), ir.Location.unknown():
        yield ir.Module.parse(MODULE).operation


def signatures(module: Any, folder: Path) -> dict[str, Any]:
    """Write the module and read its signatures back: name -> (runner, operations)."""
    from ai_edge_litert.interpreter import Interpreter
    from litert_torch._convert.litert_converter import LazyModelExporter

    LazyModelExporter(module=module).to_file(str(folder / "model.tflite"))
    interpreter = Interpreter(str(folder / "model.tflite"))
    return {name: interpreter.get_signature_runner(name) for name in interpreter.get_signature_list()}


def operation_names(function: Any) -> list[str]:
    return [operation.operation.name for operation in function.regions[0].blocks[0].operations]


def test_the_copy_answers_like_the_original_without_the_output_left_out(module: Any, tmp_path: Path) -> None:
    add_signature_without(module, source="score", output="logits", name="prefill")
    assert module.verify()
    runners = signatures(module, tmp_path)
    assert list(runners) == ["prefill", "score"]
    tokens = np.array([0.0, 1.0, -1.0, 2.0], np.float32)
    kept, everything = runners["prefill"](tokens=tokens), runners["score"](tokens=tokens)
    assert set(kept) == {"kv"} and set(everything) == {"kv", "logits"}
    np.testing.assert_array_equal(kept["kv"], everything["kv"])
    np.testing.assert_allclose(kept["kv"], np.exp(tokens), rtol=1e-6)


def test_what_only_the_output_left_out_needed_is_not_worked_out(module: Any) -> None:
    add_signature_without(module, source="score", output="logits", name="prefill")
    copy, original = (operation.operation for operation in module.regions[0].blocks[0].operations)
    assert operation_names(copy) == ["tfl.exp", "func.return"]
    assert operation_names(original) == ["tfl.exp", "tfl.neg", "tfl.abs", "func.return"], "the original stays as it is"


def test_another_output_can_be_left_out_too(module: Any, tmp_path: Path) -> None:
    add_signature_without(module, source="score", output="kv", name="judge")
    tokens = np.array([0.0, 1.0, -1.0, 2.0], np.float32)
    answer = signatures(module, tmp_path)["judge"](tokens=tokens)
    assert set(answer) == {"logits"}
    np.testing.assert_allclose(answer["logits"], np.exp(tokens), rtol=1e-6)


def test_a_signature_or_output_that_is_not_there_is_named(module: Any) -> None:
    with pytest.raises(ValueError, match="no signature decode"):
        add_signature_without(module, source="decode", output="logits", name="prefill")
    with pytest.raises(ValueError, match="no output mask; it has kv, logits"):
        add_signature_without(module, source="score", output="mask", name="prefill")
