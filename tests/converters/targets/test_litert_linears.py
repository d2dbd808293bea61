"""Rewritten graphs, run by the runtime, beside the same arithmetic in numpy; and files that do not hold what was asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from converters.stored_blocks import StoredBlocks
from converters.targets.litert_inject import PlanFolder, Planned, PlannedVector, compare, digest_of, inject, written_matrices
from converters.targets.litert_linears import SplitTable, Stored, rewrite
from converters.targets.litert_model_file import ModelFile
from converters.targets.litert_weights import GroupedLinear, Int4Groups, from_blocks, kernel_scale, round_to_int8
from toolkit.errors import FormatError

VOCAB, HIDDEN, OUT = 96, 64, 48
RNG = np.random.default_rng(20261130)
TABLE = (RNG.standard_normal((VOCAB, HIDDEN)) * 0.1).astype(np.float32)
FIRST = (RNG.standard_normal((OUT, HIDDEN)) * 0.1).astype(np.float32)
SECOND = (RNG.standard_normal((OUT, HIDDEN)) * 0.1).astype(np.float32)
BIAS = RNG.standard_normal(OUT).astype(np.float32)
TOKENS = np.array([0, 7, 31, 32, 95], np.int32)


def float_model(path: Path) -> Path:
    """tokens (5) -> rows of a table -> two linears that read the same rows (one with bias) and a tied head."""
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.tools import flatbuffer_utils

    kinds, ops = schema.TensorType, schema.BuiltinOperator
    buffers = [schema.BufferT()] + [schema.BufferT(data=array.reshape(-1).view(np.uint8)) for array in (TABLE, FIRST, SECOND, BIAS)]

    def tensor(name: str, shape: list[int], kind: int = kinds.FLOAT32, buffer: int = 0) -> object:
        return schema.TensorT(shape=np.array(shape, np.int32), type=kind, buffer=buffer, name=name.encode(), hasRank=True)

    tensors = [tensor("tokens", [5], kinds.INT32), tensor("table", [VOCAB, HIDDEN], buffer=1), tensor("rows", [5, HIDDEN])]
    tensors += [tensor("first", [OUT, HIDDEN], buffer=2), tensor("second", [OUT, HIDDEN], buffer=3), tensor("bias", [OUT], buffer=4)]
    tensors += [tensor("y1", [5, OUT]), tensor("y2", [5, OUT]), tensor("logits", [5, VOCAB])]

    def fully_connected(weight: int, bias: int, out: int) -> object:
        options = schema.FullyConnectedOptionsT(keepNumDims=True)
        return schema.OperatorT(
            opcodeIndex=1,
            inputs=np.array([2, weight, bias], np.int32),
            outputs=np.array([out], np.int32),
            builtinOptionsType=schema.BuiltinOptions.FullyConnectedOptions,
            builtinOptions=options,
        )

    lookup = schema.OperatorT(opcodeIndex=0, inputs=np.array([0, 1], np.int32), outputs=np.array([2], np.int32))
    graph = schema.SubGraphT(
        tensors=tensors,
        inputs=np.array([0], np.int32),
        outputs=np.array([6, 7, 8], np.int32),
        operators=[lookup, fully_connected(3, 5, 6), fully_connected(4, -1, 7), fully_connected(1, -1, 8)],
        name=b"main",
    )
    codes = [
        schema.OperatorCodeT(deprecatedBuiltinCode=ops.EMBEDDING_LOOKUP, builtinCode=ops.EMBEDDING_LOOKUP, version=1),
        schema.OperatorCodeT(deprecatedBuiltinCode=ops.FULLY_CONNECTED, builtinCode=ops.FULLY_CONNECTED, version=5),
    ]
    maps = [schema.TensorMapT(name=name, tensorIndex=index) for name, index in ((b"y1", 6), (b"y2", 7), (b"logits", 8))]
    signature = schema.SignatureDefT(
        inputs=[schema.TensorMapT(name=b"tokens", tensorIndex=0)], outputs=maps, signatureKey=b"main", subgraphIndex=0
    )
    model = schema.ModelT(version=3, operatorCodes=codes, subgraphs=[graph], buffers=buffers, signatureDefs=[signature])
    path.write_bytes(flatbuffer_utils.convert_object_to_bytearray(model))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return float_model(tmp_path / "float.tflite")


def run(path: Path) -> dict[str, np.ndarray]:
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=str(path), num_threads=1).get_signature_runner("main")
    outputs: dict[str, np.ndarray] = runner(tokens=TOKENS)
    return outputs


def buffer_of(file: ModelFile, weight: np.ndarray) -> int:
    return next(i for i in range(len(file.model.buffers)) if file.constant(i).tobytes() == weight.tobytes())


def grouped(weight: np.ndarray, *, is_symmetric: bool) -> GroupedLinear:
    """Rounded to nearest; the values do not matter here, only that the graph computes with them."""
    groups = weight.reshape(len(weight), -1, 32)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    scales = kernel_scale(np.abs(groups).max(axis=-1) / 7.5 if is_symmetric else (high - low) / 15)
    offsets = -8 * scales if is_symmetric else low
    codes = np.clip(np.rint((groups - offsets[..., None]) / scales[..., None]), 0, 15).astype(np.uint8)
    return from_blocks(StoredBlocks("Q4_1", 4, 32, codes.reshape(weight.shape), scales, offsets.astype(np.float32)))


def table_of(n_low: int) -> SplitTable:
    high = grouped(TABLE, is_symmetric=True).groups
    return SplitTable(round_to_int8(TABLE[:n_low]), Int4Groups(high.codes[n_low:], high.scales[n_low:], 32))


def written(model: Path, out: Path, *chosen: tuple[np.ndarray, str, Stored]) -> Path:
    file = ModelFile.open(model)
    rewrite(file, {buffer_of(file, weight): (name, stored) for weight, name, stored in chosen})
    file.write(out)
    compare(out, {name: stored for _, name, stored in chosen})
    return out


def test_writing_without_a_change_gives_a_model_that_answers_the_same(model: Path, tmp_path: Path) -> None:
    ModelFile.open(model).write(tmp_path / "again.tflite")
    wanted, got = run(model), run(tmp_path / "again.tflite")
    for name in ("y1", "y2", "logits"):
        np.testing.assert_array_equal(got[name], wanted[name])
    np.testing.assert_allclose(wanted["y1"], TABLE[TOKENS] @ FIRST.T + BIAS, rtol=1e-4, atol=1e-5)


FORMS: dict[str, Callable[[np.ndarray], Stored]] = {
    "int8": round_to_int8,
    "int4": lambda weight: grouped(weight, is_symmetric=True),
    "int4 with offsets": lambda weight: grouped(weight, is_symmetric=False),
}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_rewritten_linear_multiplies_by_what_was_stored(form: str, model: Path, tmp_path: Path) -> None:
    first, second = FORMS[form](FIRST), FORMS[form](SECOND)
    got = run(written(model, tmp_path / "q.tflite", (FIRST, "first.weight", first), (SECOND, "second.weight", second)))
    rows = TABLE[TOKENS]
    step = (rows.max(axis=1) - rows.min(axis=1)).max() / 255  # activations are rounded to 8 bits, one scale a row
    for name, stored, bias in (("y1", first, BIAS), ("y2", second, 0)):
        weight = stored.dequantized()  # type: ignore[union-attr]
        error = np.abs(got[name] - (rows @ weight.T + bias))
        assert error.max() < 4 * step * np.sqrt((weight**2).sum(axis=1)).max()
        assert np.abs(got[name] - (rows @ (weight * 1.1).T + bias)).max() > 2 * error.max(), "must-fail twin: 10 % other weights"
    np.testing.assert_allclose(got["logits"], rows @ TABLE.T, rtol=1e-4, atol=1e-5)


def test_the_sums_of_groups_are_worked_out_once_for_all_that_read_the_same_rows(model: Path, tmp_path: Path) -> None:
    from ai_edge_litert import schema_py_generated as schema

    stored = [(weight, name, grouped(weight, is_symmetric=False)) for weight, name in ((FIRST, "first"), (SECOND, "second"))]
    file = ModelFile.open(written(model, tmp_path / "q.tflite", *stored))
    assert [file.builtin_of(each) for each in file.model.subgraphs[0].operators].count(int(schema.BuiltinOperator.SUM)) == 1


@pytest.mark.parametrize("n_low", [1, 32, 95])
def test_a_split_table_looks_up_and_multiplies_rows_of_both_halves(n_low: int, model: Path, tmp_path: Path) -> None:
    table = table_of(n_low)
    whole = np.concatenate([table.low.dequantized(), table.high.dequantized()])
    got = run(written(model, tmp_path / "q.tflite", (TABLE, "table", table)))
    np.testing.assert_allclose(got["y2"], whole[TOKENS] @ SECOND.T, rtol=1e-3, atol=1e-4)
    assert np.abs(got["y2"] - TABLE[TOKENS] @ SECOND.T).max() > 1e-3, "must-fail twin: the float table would be seen"
    rows = whole[TOKENS]
    step = (rows.max(axis=1) - rows.min(axis=1)).max() / 255
    assert np.abs(got["logits"] - rows @ whole.T).max() < 4 * step * np.sqrt((whole**2).sum(axis=1)).max()


def test_a_whole_table_of_int8_or_int4_is_looked_up_too(model: Path, tmp_path: Path) -> None:
    for number, table in enumerate((round_to_int8(TABLE), grouped(TABLE, is_symmetric=True).groups)):
        got = run(written(model, tmp_path / f"{number}.tflite", (TABLE, "table", table)))
        np.testing.assert_allclose(got["y2"], table.dequantized()[TOKENS] @ SECOND.T, rtol=1e-3, atol=1e-4)


def test_float_matrices_that_were_replaced_leave_the_file(model: Path, tmp_path: Path) -> None:
    stored = [(FIRST, "first", round_to_int8(FIRST)), (SECOND, "second", round_to_int8(SECOND)), (TABLE, "table", round_to_int8(TABLE))]
    out = written(model, tmp_path / "q.tflite", *stored)
    content = out.read_bytes()
    assert not any(weight.tobytes() in content for weight in (FIRST, SECOND, TABLE))
    assert {name for name, _, _ in written_matrices(out)} == {"first", "second", "table"}


def test_a_file_with_one_other_code_or_scale_is_refused(model: Path, tmp_path: Path) -> None:
    stored = grouped(FIRST, is_symmetric=False)
    out = written(model, tmp_path / "q.tflite", (FIRST, "first", stored))
    other = Int4Groups(stored.groups.codes.copy(), stored.groups.scales.copy(), 32)
    other.codes[3, 5] ^= 1
    with pytest.raises(FormatError, match="first was not written as asked for") as caught:
        compare(out, {"first": GroupedLinear(other, stored.sums)})
    assert "1 codes and 0 scales differ" in caught.value.why
    other.codes[3, 5] ^= 1
    other.scales[0, 0] *= 2
    with pytest.raises(FormatError, match="0 codes and 1 scales differ"):
        compare(out, {"first": GroupedLinear(other, stored.sums)})
    with pytest.raises(FormatError, match="second is not in the written file"):
        compare(out, {"first": stored, "second": stored})


def plan_of(folder: Path, *planned: Planned, blocks: dict[str, StoredBlocks] | None = None) -> str:
    folder.mkdir()
    PlanFolder(folder).write(planned, blocks or {})
    return str(folder)


def test_a_plan_is_carried_out_and_read_back(model: Path, tmp_path: Path) -> None:
    codes = RNG.integers(0, 16, FIRST.shape, dtype=np.uint8)
    scales = kernel_scale(np.full((OUT, 2), 0.01, np.float32))
    blocks = StoredBlocks("Q4_1", 4, 32, codes, scales, np.full((OUT, 2), -0.05, np.float32))
    planned = (Planned("first.weight", digest_of([FIRST]), "blocks"), Planned("embed.weight", digest_of([TABLE]), "int8", is_table=True))
    plan = plan_of(tmp_path / "plan", *planned, blocks={"first.weight": blocks})
    done = inject(str(model), plan, str(tmp_path / "q.tflite"))
    assert done == {"n_replaced": 3, "n_compared": 3}
    got = run(tmp_path / "q.tflite")
    rows = round_to_int8(TABLE).dequantized()[TOKENS]
    assert np.abs(got["y1"] - (rows @ blocks.dequantized().T + BIAS)).max() < 0.02


def test_scaled_channels_change_what_is_stored_and_not_what_is_answered(model: Path, tmp_path: Path) -> None:
    """The table's columns are multiplied and looked-up rows divided again; rows of a linear are multiplied, and so is its bias."""
    columns = np.exp(RNG.standard_normal(HIDDEN)).astype(np.float32)
    rows = np.exp(RNG.standard_normal(OUT)).astype(np.float32)
    folder = tmp_path / "plan"
    folder.mkdir()
    planned = [
        Planned("embed.weight", digest_of([TABLE]), "int8", is_table=True, is_scaled=True),
        Planned("first.weight", digest_of([FIRST]), "int8", is_scaled=True),
    ]
    vectors = [PlannedVector("bias", digest_of([BIAS]))]
    arrays = {"embed.weight.columns": columns, "first.weight.rows": rows, "bias.vector": BIAS * rows}
    PlanFolder(folder).write(planned, {}, vectors=vectors, arrays=arrays)
    inject(str(model), str(folder), str(tmp_path / "q.tflite"))
    got, wanted = run(tmp_path / "q.tflite"), run(model)
    np.testing.assert_allclose(got["y2"], wanted["y2"], atol=0.02)
    np.testing.assert_allclose(got["y1"] / rows, wanted["y1"], atol=0.02)
    assert np.abs(got["y1"] - wanted["y1"]).max() > 0.5, "must-fail twin: the rows were multiplied"
    stored = next(codes * scales[:, None] for name, codes, scales in written_matrices(tmp_path / "q.tflite") if name == "embed.weight")
    np.testing.assert_allclose(stored, TABLE * columns, atol=np.abs(TABLE * columns).max() / 200)


def test_a_vector_that_is_not_in_the_graph_is_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "plan").mkdir()
    missing = [PlannedVector("norm.weight", digest_of([BIAS + 1]))]
    PlanFolder(tmp_path / "plan").write([], {}, vectors=missing, arrays={"norm.weight.vector": BIAS})
    with pytest.raises(FormatError, match=r"norm\.weight is not in the lowered graph"):
        inject(str(model), str(tmp_path / "plan"), str(tmp_path / "q.tflite"))


def test_a_matrix_that_is_not_in_the_graph_is_named(model: Path, tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "plan", Planned("other.weight", digest_of([FIRST + 1]), "int8"))
    with pytest.raises(FormatError, match=r"other\.weight is not in the lowered graph"):
        inject(str(model), plan, str(tmp_path / "q.tflite"))
