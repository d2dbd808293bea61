"""A GGUF file written tensor by tensor, block by block, so that its size never has to fit in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converters.targets.gguf_plan import PlannedTensor
from converters.targets.gguf_storage import TYPE_IDS
from toolkit.errors import ToolkitError


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Iterable[PlannedTensor], on_tensor: Callable[[str], None] | None = None
) -> None:
    """Write a file, which appears at `path` only when it is whole.

    Args:
        path: Where to.
        metadata: Key to value, `general.architecture` included; int becomes uint32, float float32, lists arrays of one type.
        tensors: In the order they are written.
        on_tensor: Called with each name once it is written.

    Raises:
        FormatError: A tensor of the source is damaged.
        ToolkitError: A tensor does not come to the bytes planned, or its values do not fit its type.
        OSError: The file cannot be written; the part that was is removed.
    """
    from gguf import GGMLQuantizationType, GGUFWriter

    tensors, part = list(tensors), path.with_name(path.name + ".part")
    writer = GGUFWriter(part, str(metadata["general.architecture"]))
    try:
        for key, value in metadata.items():
            if key != "general.architecture":
                _add(writer, key, value)
        for tensor in tensors:
            kind = GGMLQuantizationType(TYPE_IDS[tensor.type.name])
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.n_bytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        [stream] = writer.fout
        writer.write_padding(stream, stream.tell())
        for tensor in tensors:
            _write_tensor(stream, tensor)
            writer.write_padding(stream, tensor.n_bytes)
            if on_tensor is not None:
                on_tensor(tensor.name)
        stream.flush()
        os.fsync(stream.fileno())
        writer.close()
        os.replace(part, path)
    finally:
        writer.close()
        part.unlink(missing_ok=True)


def _write_tensor(stream: Any, tensor: PlannedTensor) -> None:
    n_bytes = 0
    for block in tensor.blocks():
        n_bytes += len(block)
        stream.write(block)
    if n_bytes != tensor.n_bytes:
        raise ToolkitError(
            f"{tensor.name} could not be written", why=f"{n_bytes} bytes came, {tensor.n_bytes} were planned", fix="report it"
        )


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
