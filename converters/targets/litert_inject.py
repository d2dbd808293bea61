"""Writing chosen codes into a lowered model, and reading them back: what the file holds must be what was asked for.

A plan is a folder: `plan.json` says what becomes of each matrix, `weights.safetensors` holds codes, scales and offsets of
those that have their own. It is how codes come from the process that chose them to the one that writes the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from converters.architectures.base import FloatArray
from converters.stored_blocks import StoredBlocks
from converters.targets.litert_linears import SplitTable, Stored, rewrite
from converters.targets.litert_model_file import ModelFile
from converters.targets.litert_weights import GroupedLinear, Int4Groups, Int8Array, Int8Rows, from_blocks, round_to_int8, unpack_int4
from toolkit.errors import FormatError

PLAN_NAME = "plan.json"
WEIGHTS_NAME = "weights.safetensors"
Form = Literal["blocks", "int8"]


@dataclass(frozen=True)
class Planned:
    """What becomes of one matrix of the graph.

    Args:
        name: Its Hugging Face name.
        digest: SHA-256 of its float32 bytes, which find it in the graph.
        form: `blocks`, codes from the plan; `int8`, rounded with one scale a row.
        is_table: Whether it is looked up by token.
        int8_rows: First rows that are rounded to int8 whatever the form.
        is_scaled: Whether the plan has numbers its rows or columns are multiplied by before they are rounded. Looked-up rows
            are divided by those of the columns again.
    """

    name: str
    digest: str
    form: Form
    is_table: bool = False
    int8_rows: int = 0
    is_scaled: bool = False


@dataclass(frozen=True)
class PlannedVector:
    """A vector of the graph (a norm's weights) that is replaced by the plan's `NAME.vector`.

    Args:
        name: Its Hugging Face name.
        digest: SHA-256 of its float32 bytes in the graph, which find it there.
    """

    name: str
    digest: str


class PlanFolder:
    """A plan being written, or read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(
        self,
        planned: Iterable[Planned],
        blocks: Mapping[str, StoredBlocks],
        *,
        vectors: Iterable[PlannedVector] = (),
        arrays: Mapping[str, FloatArray] | None = None,
    ) -> None:
        """Write the plan.

        Args:
            planned: The matrices.
            blocks: Codes of every matrix of form `blocks`.
            vectors: Vectors to be replaced.
            arrays: `NAME.rows` and `NAME.columns` of scaled matrices, `NAME.vector` of replaced vectors.
        """
        from safetensors.numpy import save_file

        planned, vectors = list(planned), list(vectors)
        missing = [each.name for each in planned if each.form == "blocks" and each.name not in blocks]
        assert not missing, f"planned as blocks, but without codes: {missing}"
        parts = {f"{name}.{part}": getattr(each, part) for name, each in blocks.items() for part in ("codes", "scales", "offsets")}
        save_file(parts | dict(arrays or {}), self.folder / WEIGHTS_NAME)
        facts = {name: {"kind": each.kind, "bits": each.bits, "group_size": each.group_size} for name, each in blocks.items()}
        content = {"matrices": [asdict(each) for each in planned], "vectors": [asdict(each) for each in vectors], "blocks": facts}
        (self.folder / PLAN_NAME).write_text(json.dumps(content), encoding="utf-8")

    def planned(self) -> list[Planned]:
        return [Planned(**each) for each in self._content()["matrices"]]

    def vectors(self) -> list[PlannedVector]:
        return [PlannedVector(**each) for each in self._content()["vectors"]]

    def array(self, name: str) -> FloatArray | None:
        """One of the plan's arrays; None if it has none of this name."""
        from safetensors import safe_open

        with safe_open(self.folder / WEIGHTS_NAME, framework="numpy") as weights:
            found: FloatArray | None = weights.get_tensor(name) if name in weights.keys() else None  # noqa: SIM118 (no mapping)
        return found

    def blocks(self, name: str) -> StoredBlocks:
        from safetensors import safe_open

        with safe_open(self.folder / WEIGHTS_NAME, framework="numpy") as weights:
            parts = {part: weights.get_tensor(f"{name}.{part}") for part in ("codes", "scales", "offsets")}
        return StoredBlocks(**self._content()["blocks"][name], **parts)

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / PLAN_NAME).read_bytes())
        return content


def digest_of(blocks: Iterable[FloatArray]) -> str:
    """SHA-256 over a matrix that comes in blocks of rows."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(np.ascontiguousarray(block, np.float32).data)
    return digest.hexdigest()


def inject(model: str, plan: str, out: str) -> dict[str, Any]:
    """Write `out`, the float `model` with its matrices as planned, and compare what was written. Meant for a child process.

    Raises:
        FormatError: A planned matrix is not in the graph, or the written file does not hold what was asked for.

    Returns:
        {"n_replaced": operators, "n_compared": matrices read back}.
    """
    file, folder = ModelFile.open(Path(model)), PlanFolder(Path(plan))
    planned = folder.planned()
    buffers = find_matrices(file, {each.digest for each in planned})
    if missing := [each.name for each in planned if each.digest not in buffers]:
        raise FormatError(
            f"{missing[0]} is not in the lowered graph as the checkpoint has it",
            why=f"{len(missing)} of {len(planned)} matrices have other values there, or were transposed or joined",
            fix="convert again with --force; if it stays so, use int8, which does not look for single matrices",
        )
    matrices = {buffers[each.digest]: (each.name, _stored(each, folder, file, buffers[each.digest])) for each in planned}
    divisors = {
        buffers[each.digest]: columns
        for each in planned
        if each.is_table and each.is_scaled and (columns := folder.array(f"{each.name}.columns")) is not None
    }
    _replace_vectors(file, folder)
    n_replaced = rewrite(file, matrices, divisors)
    file.write(Path(out))
    return {"n_replaced": n_replaced, "n_compared": compare(Path(out), dict(matrices.values()))}


def find_matrices(file: ModelFile, digests: set[str]) -> dict[str, int]:
    """Digest -> buffer index of the float32 matrices a model's linears and lookups read."""
    from ai_edge_litert import schema_py_generated as schema

    readers = {int(schema.BuiltinOperator.FULLY_CONNECTED), int(schema.BuiltinOperator.EMBEDDING_LOOKUP)}
    candidates = {
        graph.tensors[operator.inputs[1]].buffer
        for graph in file.model.subgraphs
        for operator in graph.operators
        if file.builtin_of(operator) in readers and graph.tensors[operator.inputs[1]].type == schema.TensorType.FLOAT32
    }
    found = {hashlib.sha256(file.constant(buffer).data).hexdigest(): buffer for buffer in candidates}
    return {digest: buffer for digest, buffer in found.items() if digest in digests}


def _replace_vectors(file: ModelFile, folder: PlanFolder) -> None:
    vectors = folder.vectors()
    sizes = {np.asarray(folder.array(f"{each.name}.vector")).nbytes for each in vectors}
    contents = {index: file.constant(index) for index in range(len(file.model.buffers))}
    by_digest: dict[str, list[int]] = {}
    for index, content in contents.items():
        if content.nbytes in sizes:
            by_digest.setdefault(hashlib.sha256(content.data).hexdigest(), []).append(index)
    if len({each.digest for each in vectors}) < len(vectors):
        raise FormatError("two norms have the same weights", why="one cannot be told from the other in the graph", fix="use int8")
    for each in vectors:
        if each.digest not in by_digest:
            raise FormatError(
                f"{each.name} is not in the lowered graph as the checkpoint has it", why="no vector equals it", fix="use int8"
            )
        for index in by_digest[each.digest]:
            buffer = file.model.buffers[index]
            buffer.data = np.asarray(folder.array(f"{each.name}.vector"), np.float32).view(np.uint8)
            buffer.offset = buffer.size = 0


def _stored(planned: Planned, folder: PlanFolder, file: ModelFile, buffer: int) -> Stored:
    def matrix(n_rows: int | None = None) -> FloatArray:
        """The float matrix, or its first rows, with rows and columns multiplied as planned."""
        weight = _matrix(file, buffer)[:n_rows]
        if planned.is_scaled:
            if (columns := folder.array(f"{planned.name}.columns")) is not None:
                weight = weight * columns
            if (rows := folder.array(f"{planned.name}.rows")) is not None:
                weight = weight * rows[:n_rows, None]
        return weight

    if planned.form == "int8":
        return round_to_int8(matrix())
    made = from_blocks(folder.blocks(planned.name))
    if not planned.is_table:
        return made
    assert made.sums is None, f"{planned.name}: the codes of a table have no offsets"
    if not planned.int8_rows:
        return made.groups
    n_low = planned.int8_rows
    high = Int4Groups(made.groups.codes[n_low:], made.groups.scales[n_low:], made.groups.group_size)
    return SplitTable(round_to_int8(matrix(n_low)), high)


def _matrix(file: ModelFile, buffer: int) -> FloatArray:
    """The float32 matrix in a buffer, shaped as the tensors that use it."""
    shapes = (tensor.shape for graph in file.model.subgraphs for tensor in graph.tensors if tensor.buffer == buffer)
    matrix: FloatArray = file.constant(buffer).view(np.float32).reshape(next(shapes))
    return matrix


def compare(path: Path, wanted: Mapping[str, Stored]) -> int:
    """Read every written matrix back, in every graph that uses it, and compare codes and scales with what was asked for.

    Raises:
        FormatError: One is missing or differs.

    Returns:
        Number of tensors compared.
    """
    parts: dict[str, Int8Rows | Int4Groups] = {}
    for name, stored in wanted.items():
        if isinstance(stored, SplitTable):
            parts |= {f"{name}_low": stored.low, f"{name}_high": stored.high}
        elif isinstance(stored, GroupedLinear):
            parts |= {name: stored.groups} | ({} if stored.sums is None else {f"{name}_offsets": stored.sums})
        else:
            parts[name] = stored
    n_compared, fix = 0, "convert again with --force; if it stays so, report it"
    seen: set[str] = set()
    for name, codes, scales in written_matrices(path):
        if name in parts:
            n_compared += 1
            seen.add(name)
            if why := _difference(codes, scales, parts[name]):
                raise FormatError(f"{name} was not written as asked for", why=why, fix=fix)
    if missing := sorted(set(parts) - seen):
        raise FormatError(f"{missing[0]} is not in the written file", why=f"{len(missing)} of {len(parts)} matrices are not", fix=fix)
    return n_compared


def written_matrices(path: Path) -> Iterator[tuple[str, Int8Array, FloatArray]]:
    """(name, codes, scales) of every int8 and int4 tensor of a .tflite, once for each graph that has it."""
    from ai_edge_litert import schema_py_generated as schema

    content = np.memmap(path, dtype=np.uint8, mode="r")
    model = schema.Model.GetRootAs(content, 0)

    def constant(index: int) -> npt.NDArray[np.uint8]:
        buffer = model.Buffers(index)
        found: npt.NDArray[np.uint8]
        found = content[buffer.Offset() : buffer.Offset() + buffer.Size()] if buffer.DataIsNone() else buffer.DataAsNumpy()
        return found

    for graph in (model.Subgraphs(index) for index in range(model.SubgraphsLength())):
        for tensor in (graph.Tensors(index) for index in range(graph.TensorsLength())):
            kind = tensor.Type()
            if kind not in (schema.TensorType.INT8, schema.TensorType.INT4):
                continue
            shape, name = (tensor.Shape(0), tensor.Shape(1)), tensor.Name().decode()
            if kind == schema.TensorType.INT8:
                yield name, constant(tensor.Buffer()).view(np.int8).reshape(shape), tensor.Quantization().ScaleAsNumpy()
                continue
            details = schema.BlockwiseQuantizationT.InitFromBuf(content, tensor.Quantization().Details().Pos)
            scales = constant(graph.Tensors(details.scales).Buffer()).view(np.float16).astype(np.float32)
            yield name, unpack_int4(constant(tensor.Buffer()), shape), scales.reshape(shape[0], -1)


def _difference(codes: Int8Array, scales: FloatArray, wanted: Int8Rows | Int4Groups) -> str:
    if codes.shape != wanted.codes.shape or scales.shape != wanted.scales.shape:
        return f"shapes {codes.shape} and {scales.shape}, not {wanted.codes.shape} and {wanted.scales.shape}"
    n_codes, n_scales = int((codes != wanted.codes).sum()), int((scales != wanted.scales).sum())
    return f"{n_codes} codes and {n_scales} scales differ" if n_codes or n_scales else ""
