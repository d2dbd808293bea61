"""What a model folder says of itself, checked before a native parser sees it, and what its weights really take.

A graph names files and byte ranges of its own accord; every one must lie inside the folder and inside its file.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from converters.targets.onnx_config import CONFIG_NAME
from converters.targets.onnx_names import is_rope_table
from toolkit.errors import FormatError
from toolkit.json_depth import check_json_depth

MAX_CONFIG_BYTES = 2**20
MAX_GRAPH_BYTES = 2**28
MAX_COUNT = 2**31 - 1
_BITS = {1: 32, 2: 8, 3: 8, 6: 32, 7: 64, 10: 16, 11: 64, 16: 16}  # onnx.TensorProto.DataType
_NAMES = {1: "float32", 2: "uint8", 7: "int64", 10: "float16"}


@dataclass(frozen=True)
class ModelFolder:
    """A folder that onnxruntime-genai opens.

    Args:
        path: The folder.
        graph_path: The ONNX file its config names.
        context_length: Tokens, prompt and answer.
        head_dim: Width of a head.
        n_kv_heads: Heads of the KV cache.
        vocab_size: Columns of the logits.
        stop_token_ids: Tokens that end an answer.
        n_positions: Rows of the rotary tables: what the graph itself can hold, `context_length` or more.
    """

    path: Path
    graph_path: Path
    context_length: int
    head_dim: int
    n_kv_heads: int
    vocab_size: int
    stop_token_ids: tuple[int, ...]
    n_positions: int


@dataclass(frozen=True)
class StoredWeights:
    """What the initializers of a graph hold, rotary tables apart; bytes that two of them share count once.

    Args:
        bits: Of all weight tensors: codes, scales, zero points, offsets, floats.
        bits_by_type: The same by type, e.g. {"uint8": 480_000_000}.
        rope_bytes: Of the rotary tables.
    """

    bits: int
    bits_by_type: dict[str, int]
    rope_bytes: int


def read_folder(folder: Path) -> ModelFolder:
    """Read genai_config.json and hold every byte range the graph names against its file.

    Raises:
        FormatError: A file is missing or damaged, or names what is not there.
    """
    model = _config(folder)
    try:
        decoder = model["decoder"]
        stop = model["eos_token_id"]
        graph_path = folder / _inside(decoder["filename"])
        files = ModelFolder(
            path=folder,
            graph_path=graph_path,
            context_length=_count(model["context_length"]),
            head_dim=_count(decoder["head_size"]),
            n_kv_heads=_count(decoder["num_key_value_heads"]),
            vocab_size=_count(model["vocab_size"]),
            stop_token_ids=tuple(int(token_id) for token_id in (stop if isinstance(stop, list) else [stop])),
            n_positions=_check_ranges(graph_path),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(folder / CONFIG_NAME, f"{type(error).__name__}: {error}") from error
    return files


def stored_weights(graph_path: Path) -> StoredWeights:
    """Count what a graph stores, from the graph itself and never from a recipe."""
    counted: set[tuple[str, int]] = set()
    by_type: Counter[str] = Counter()
    rope_bytes = 0
    for tensor in read_graph(graph_path).graph.initializer:
        if not tensor.external_data:
            continue
        place = _external(graph_path, tensor)
        if place[:2] in counted:
            continue
        counted.add(place[:2])
        if is_rope_table(tensor.name):
            rope_bytes += place[2]
        else:
            by_type[_NAMES.get(tensor.data_type, f"type {tensor.data_type}")] += 8 * place[2]
    return StoredWeights(sum(by_type.values()), dict(by_type), rope_bytes)


def read_graph(path: Path) -> Any:
    """The onnx.ModelProto of a file, without what lies beside it.

    Raises:
        FormatError: It is missing, too large, or no ONNX graph.
    """
    import onnx
    from google.protobuf.message import DecodeError

    size = _size(path)
    if size > MAX_GRAPH_BYTES:
        raise _damaged(path, f"the graph has {size} bytes, more than {MAX_GRAPH_BYTES} without its weights")
    try:
        return onnx.ModelProto.FromString(path.read_bytes())
    except DecodeError as error:
        raise _damaged(path, f"it is no ONNX graph ({error})") from error


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_NAME
    try:
        if not path.is_file():
            raise ValueError("it is not there")
        with path.open("rb") as stream:
            data = stream.read(MAX_CONFIG_BYTES + 1)
        if len(data) > MAX_CONFIG_BYTES:
            raise ValueError(f"it has more than {MAX_CONFIG_BYTES} bytes")
        text = data.decode("utf-8")
        check_json_depth(text)
        model = json.loads(text)["model"]
        if not isinstance(model, dict):
            raise TypeError("model is no object")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, str(error) or type(error).__name__) from error
    return model


def _check_ranges(graph_path: Path) -> int:
    """Hold every tensor outside the graph against its file; returns the rows of the shortest rotary table."""
    n_positions = MAX_COUNT
    for tensor in read_graph(graph_path).graph.initializer:
        if tensor.external_data:
            location, offset, length = _external(graph_path, tensor)
            needed = math.prod(tensor.dims) * _BITS.get(tensor.data_type, 0) // 8
            if length != needed or min(tensor.dims, default=1) <= 0:
                raise _damaged(graph_path, f"{tensor.name} of shape {tuple(tensor.dims)} has {length} bytes, {needed} are needed")
            size = _size(graph_path.parent / location)
            if offset + length > size:
                raise _damaged(graph_path.parent / location, f"it has {size} bytes, {tensor.name} reaches to {offset + length}")
            n_positions = min(n_positions, tensor.dims[0]) if is_rope_table(tensor.name) else n_positions
    return n_positions


def _external(graph_path: Path, tensor: Any) -> tuple[str, int, int]:
    """(location, offset, length) of a tensor outside the graph."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    try:
        location, offset, length = _inside(entries["location"]), int(entries["offset"]), int(entries["length"])
        if offset < 0 or length < 0:
            raise ValueError(f"offset {offset}, length {length}")
    except (KeyError, ValueError) as error:
        raise _damaged(graph_path, f"{tensor.name} does not say where its data is: {error}") from error
    return location, offset, length


def _inside(name: str) -> str:
    """A relative path that stays in its folder."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or path.as_posix() == ".":
        raise ValueError(f"{name!r} is no file of this folder")
    return name


def _size(path: Path) -> int:
    if not path.is_file():
        raise _damaged(path, "it is not there")
    return path.stat().st_size


def _count(value: Any) -> int:
    if type(value) is not int or not 0 < value <= MAX_COUNT:
        raise ValueError(f"{value!r} is no count")
    return value


def _damaged(path: Path, why: str) -> FormatError:
    return FormatError(f"{path} cannot be used", why=why, fix="copy the bundle again, or convert the model again")
