"""The weights of an MLX bundle: safetensors as mlx_lm saves them, quantized while they are read, a block of rows at a time.

Packed codes, scales and biases of one matrix lie in three places of a file, so every array is written at its own offset.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from converters.quantize.affine import WORD_BITS, Affine, pack_codes, quantize_affine
from converters.safetensors_writer import DTYPE_CODES, encode_floats, header_bytes
from converters.targets.mlx_storage import Storage
from toolkit.errors import FormatError, ToolkitError

if TYPE_CHECKING:
    from converters.architectures.base import FloatArray
    from converters.checkpoint import TensorSource

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
# Where mlx_lm begins a new file.
MAX_SHARD_BYTES = 5 * 2**30


class Entry(NamedTuple):
    """One array of a file: name, safetensors type code, shape, bytes."""

    name: str
    code: str
    shape: tuple[int, ...]
    n_bytes: int


@dataclass(frozen=True)
class Shard:
    """One file: its name, the tensors it holds, and its arrays in order."""

    name: str
    tensors: tuple[str, ...]
    entries: tuple[Entry, ...]


@dataclass
class Rounding:
    """What storing vectors (norm weights, biases) as the bundle's floats changed."""

    n_values: int = 0
    n_changed: int = 0


def write_weights(
    folder: Path, tensors: TensorSource, plan: dict[str, Storage], on_tensor: Callable[[str], None] | None = None
) -> Rounding:
    """Write every tensor of a plan, and the index, into an empty folder.

    Peak memory is that of reading and quantizing one block, or one whole matrix where its own codes are kept or the source
    hands it over whole.

    Raises:
        FormatError: A tensor is damaged, or codes to be kept have scales outside float16.
        ToolkitError: A value is too large for float16, or a float to be kept is none of float16's.
        OSError: The folder cannot be written.
    """
    rounding = Rounding()
    shards = plan_shards(tensors, plan)
    for shard in shards:
        with _open_shard(folder / shard.name, shard) as write:
            for name in shard.tensors:
                _write_tensor(tensors, name, plan[name], write, rounding)
                if on_tensor is not None:
                    on_tensor(name)
    n_parameters = sum(math.prod(tensors.shape(name)) for name in plan)
    total = sum(entry.n_bytes for shard in shards for entry in shard.entries)
    places = {entry.name: shard.name for shard in shards for entry in shard.entries}
    index = {"metadata": {"total_size": total, "total_parameters": n_parameters}, "weight_map": dict(sorted(places.items()))}
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return rounding


def plan_shards(tensors: TensorSource, plan: dict[str, Storage]) -> list[Shard]:
    """Cut the tensors into files of at most `MAX_SHARD_BYTES` (or one tensor), in order."""
    groups: list[list[str]] = []
    room = 0
    for name, storage in plan.items():
        size = sum(entry.n_bytes for entry in entries_of(name, tensors.shape(name), storage))
        if size > room:
            groups.append([])
            room = MAX_SHARD_BYTES
        groups[-1].append(name)
        room -= size
    names = [WEIGHTS_NAME] if len(groups) == 1 else [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    return [
        Shard(file, tuple(group), tuple(entry for name in group for entry in entries_of(name, tensors.shape(name), plan[name])))
        for file, group in zip(names, groups, strict=True)
    ]


def entries_of(name: str, shape: Sequence[int], storage: Storage) -> list[Entry]:
    """The arrays a tensor becomes: itself, or packed codes, scales and biases beside each other."""
    code, width = DTYPE_CODES[storage.dtype]
    if storage.bits is None or storage.group_size is None:
        return [Entry(name, code, tuple(shape), width * math.prod(shape))]
    stem, (out_features, in_features) = module_path(name), shape
    packed = (out_features, in_features * storage.bits // WORD_BITS)
    groups = (out_features, in_features // storage.group_size)
    scale_bytes = width * math.prod(groups)
    return [
        Entry(name, "U32", packed, 4 * math.prod(packed)),
        Entry(f"{stem}.scales", code, groups, scale_bytes),
        Entry(f"{stem}.biases", code, groups, scale_bytes),
    ]


def module_path(name: str) -> str:
    """The path of the module a weight belongs to, as mlx_lm's quantization config spells it."""
    return name.removesuffix(".weight")


Write = Callable[[str, np.ndarray], None]


@contextmanager
def _open_shard(path: Path, shard: Shard) -> Iterator[Write]:
    """A function that appends to an array of a new safetensors file; the file is whole when the block ends."""
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    ends: dict[str, int] = {}
    end = 0
    for entry in shard.entries:
        header[entry.name] = {"dtype": entry.code, "shape": list(entry.shape), "data_offsets": [end, end + entry.n_bytes]}
        ends[entry.name] = end = end + entry.n_bytes
    start = header_bytes(header)
    at = {entry.name: len(start) + ends[entry.name] - entry.n_bytes for entry in shard.entries}
    with path.open("wb") as stream:
        stream.write(start)
        stream.truncate(len(start) + end)

        def write(name: str, array: np.ndarray) -> None:
            stream.seek(at[name])
            stream.write(np.ascontiguousarray(array).data)
            at[name] += array.nbytes

        yield write
        short = [name for name in at if at[name] != len(start) + ends[name]]
        if short:
            raise FormatError(f"{short[0]} has fewer rows than its shape says", why="the source ended early", fix="download it again")


def _write_tensor(tensors: TensorSource, name: str, storage: Storage, write: Write, rounding: Rounding) -> None:
    if storage.kept_kind is not None:
        _write_affine(name, _kept(tensors, name, storage), storage, write)
        return
    for block in tensors.blocks(name):
        if storage.bits is not None and storage.group_size is not None:
            _write_affine(name, quantize_affine(block, bits=storage.bits, group_size=storage.group_size), storage, write)
            continue
        encoded = encode_floats(block, storage.dtype, name)
        if storage.is_exact or block.ndim == 1:
            n_changed = int((_decoded(encoded, storage) != block).sum())
            if storage.is_exact and n_changed:
                raise _inexact(name, n_changed, block.size)
            rounding.n_values += block.size
            rounding.n_changed += n_changed
        write(name, encoded)


def _write_affine(name: str, quantized: Affine, storage: Storage, write: Write) -> None:
    stem = module_path(name)
    write(name, quantized.packed)
    write(f"{stem}.scales", encode_floats(quantized.scales, storage.dtype, f"{stem}.scales"))
    write(f"{stem}.biases", encode_floats(quantized.biases, storage.dtype, f"{stem}.biases"))


def _kept(tensors: TensorSource, name: str, storage: Storage) -> Affine:
    """The source's own codes, their scales and offsets proven to survive the bundle's float type."""
    stored = tensors.stored(name)
    assert stored is not None and storage.bits == stored.bits, "the plan was made from stored_kind"
    for array in (stored.scales, stored.offsets):
        changed = _decoded(encode_floats(array, storage.dtype, name), storage) != array
        if changed.any():
            raise _inexact(name, int(changed.sum()), array.size)
    return Affine(pack_codes(stored.codes, stored.bits), stored.scales, stored.offsets)


def _decoded(encoded: np.ndarray, storage: Storage) -> FloatArray:
    """What a reader makes of `encode_floats`' result."""
    if storage.dtype == "bfloat16":
        return (encoded.astype(np.uint32) << 16).view(np.float32)
    return encoded.astype(np.float32)


def _inexact(name: str, n_changed: int, n_values: int) -> ToolkitError:
    return ToolkitError(
        f"{name} cannot be kept as it is",
        why=f"{n_changed} of {n_values} of its numbers are none of float16's",
        fix="use --recipe int8 or fp16, which may round",
    )


def stored_bytes(folder: Path) -> int:
    """Bytes of all arrays in a folder's weight files, measured: each file less its header."""
    total = 0
    for path in folder.glob("model*.safetensors"):
        with path.open("rb") as stream:
            total += path.stat().st_size - 8 - int.from_bytes(stream.read(8), "little")
    return total
