"""The one file beside a graph that holds its weights: written row by row, so that no table need be in memory whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

DATA_SUFFIX = ".data"
# A runtime may map a large tensor instead of reading it, if it starts where a mapping may start on every system.
LARGE_BYTES, LARGE_ALIGNMENT, ALIGNMENT = 2**20, 2**16, 64
_TYPES: dict[str, int] = {"float32": 1, "uint8": 2, "int64": 7, "float16": 10}  # onnx.TensorProto.DataType


class Tensor:
    """Room for one tensor in the file. Rows are appended until it is full."""

    def __init__(self, stream: BinaryIO, name: str, dtype: str, shape: Sequence[int], location: str, offset: int) -> None:
        self.name, self.dtype, self.shape = name, np.dtype(dtype).newbyteorder("<"), tuple(shape)
        self.location, self.offset = location, offset
        self.n_bytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self._stream, self._written = stream, 0

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Write the next rows, converted to the tensor's type.

        Raises:
            ValueError: A row has another shape, or there is no room for that many.
        """
        content = np.ascontiguousarray(rows, self.dtype)
        if content.shape[1:] != self.shape[1:] or self._written + content.nbytes > self.n_bytes:
            raise ValueError(f"{self.name} has shape {self.shape} and {self._written} bytes; rows of {content.shape} do not fit")
        self._stream.seek(self.offset + self._written)
        self._stream.write(content.data)
        self._written += content.nbytes

    @property
    def is_full(self) -> bool:
        return self._written == self.n_bytes

    def proto(self, name: str | None = None, shape: Sequence[int] | None = None) -> Any:
        """The TensorProto that points here; under another name and shape it is the same bytes once more."""
        import onnx

        tensor = onnx.TensorProto(name=name or self.name, data_type=_TYPES[self.dtype.name], dims=shape or self.shape)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", self.location), ("offset", self.offset), ("length", self.n_bytes)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor


class DataFile:
    """A data file under construction; as a context manager it is whole, and on disk, when the block ends without an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors: list[Tensor] = []
        self._end = 0

    def __enter__(self) -> DataFile:
        self._stream = self.path.open("wb")
        return self

    def tensor(self, name: str, dtype: str, shape: Sequence[int]) -> Tensor:
        """Room for a tensor at the end of the file."""
        n_bytes = int(np.prod(tuple(shape), dtype=np.int64)) * np.dtype(dtype).itemsize
        alignment = LARGE_ALIGNMENT if n_bytes >= LARGE_BYTES else ALIGNMENT
        made = Tensor(self._stream, name, dtype, shape, self.path.name, -(-self._end // alignment) * alignment)
        self._end = made.offset + made.n_bytes
        self._tensors.append(made)
        return made

    def array(self, name: str, values: npt.NDArray[Any]) -> Tensor:
        """A tensor written at once, in its own type."""
        made = self.tensor(name, values.dtype.name, values.shape)
        made.append(values)
        return made

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                unfinished = [tensor.name for tensor in self._tensors if not tensor.is_full]
                if unfinished:
                    raise ValueError(f"{len(unfinished)} tensors are not whole, first {unfinished[0]}")
                self._stream.flush()
                os.fsync(self._stream.fileno())
        finally:
            self._stream.close()
