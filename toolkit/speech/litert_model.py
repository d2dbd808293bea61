"""A .tflite opened for running: its signatures, their tensors, and buffers that are reused from step to step."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from toolkit.errors import EngineError, FormatError
from toolkit.speech.litert_c import _DELETER, LiteRtLibrary, RankedTensorType, TensorBuffer

CPU = 1
MAX_SIGNATURES, MAX_TENSORS = 64, 1024


@dataclass(frozen=True)
class Signature:
    """One entry point: tensors by name in the library's order, with their shapes."""

    index: int
    inputs: dict[str, RankedTensorType]
    outputs: dict[str, RankedTensorType]


class LiteRtModel:
    """A compiled model and the buffers made for it. Use as a context manager: the library frees nothing by itself.

    Args:
        path: The .tflite; its hash must have been checked.
        library: From `open_library`.
        n_threads: CPU threads.
        cache_path: Where packed weights are kept for the next start; not kept if None.

    Raises:
        EngineError: The library refuses the file.
        FormatError: The file has no signatures, or more than any of ours.
    """

    def __init__(self, path: Path, library: LiteRtLibrary, *, n_threads: int, cache_path: Path | None = None) -> None:
        self._library = library
        self._buffers: list[TensorBuffer] = []
        self._kinds: list[tuple[str, ctypes.c_void_p]] = []  # what to destroy, in the order it was made
        try:
            self._environment = self._own("Environment", library.handle("CreateEnvironment", 0, None))
            self._model = self._own("Model", library.handle("CreateModelFromFile", self._environment, str(path).encode()))
            self._compiled = self._own("CompiledModel", self._compile(n_threads, cache_path))
            self.signatures = self._read_signatures(path)
        except BaseException:
            self.close()
            raise

    def _own(self, kind: str, handle: ctypes.c_void_p) -> ctypes.c_void_p:
        self._kinds.append((kind, handle))
        return handle

    def _compile(self, n_threads: int, cache_path: Path | None) -> ctypes.c_void_p:
        options = self._own("Options", self._library.handle("CreateOptions"))
        self._library.call("SetOptionsHardwareAccelerators", options, CPU)
        lines = [f"num_threads = {int(n_threads)}"]
        if cache_path is not None:
            lines.append(f'weight_cache_file_path = "{cache_path}"')  # its parser takes the line's outer quotes and unescapes nothing
        # The library keeps pointers to both: they live as long as this object.
        self._toml = ctypes.create_string_buffer("\n".join(lines).encode())
        self._deleter = _DELETER(lambda payload: None)
        opaque = self._library.handle("CreateOpaqueOptions", b"xnnpack", ctypes.cast(self._toml, ctypes.c_void_p), self._deleter)
        try:
            self._library.call("AddOpaqueOptions", options, opaque)  # from here on they belong to the options
        except BaseException:
            self._library.destroy("OpaqueOptions", opaque)
            raise
        return self._library.handle("CreateCompiledModel", self._environment, self._model, options)

    def _read_signatures(self, path: Path) -> dict[str, Signature]:
        count = self._library.number("GetNumModelSignatures", self._model)
        if not 1 <= count <= MAX_SIGNATURES:
            raise FormatError(f"{path.name} cannot be run", why=f"it has {count} signatures", fix="convert the checkpoint again")
        signatures = {}
        for index in range(count):
            handle = self._library.handle("GetModelSignature", self._model, index)
            inputs, outputs = (self._tensors(handle, side, path) for side in ("Input", "Output"))
            signatures[self._library.text("GetSignatureKey", handle)] = Signature(index, inputs, outputs)
        return signatures

    def _tensors(self, signature: ctypes.c_void_p, side: str, path: Path) -> dict[str, RankedTensorType]:
        count = self._library.number(f"GetNumSignature{side}s", signature)
        if count > MAX_TENSORS:
            raise FormatError(f"{path.name} cannot be run", why=f"a signature has {count} tensors", fix="convert the checkpoint again")
        tensors = {}
        for index in range(count):
            kind = RankedTensorType()
            tensor = self._library.handle(f"GetSignature{side}TensorByIndex", signature, index)
            self._library.call("GetRankedTensorType", tensor, ctypes.byref(kind))
            tensors[self._library.text(f"GetSignature{side}Name", signature, index)] = kind
        return tensors

    def input_buffer(self, signature: str, name: str) -> TensorBuffer:
        """A new buffer for one input."""
        return self._buffer("Input", signature, self.signatures[signature].inputs, name)

    def output_buffer(self, signature: str, name: str) -> TensorBuffer:
        """A new buffer for one output."""
        return self._buffer("Output", signature, self.signatures[signature].outputs, name)

    def _buffer(self, side: str, signature: str, tensors: Mapping[str, RankedTensorType], name: str) -> TensorBuffer:
        kind, place = tensors[name], list(tensors).index(name)
        index = self.signatures[signature].index
        needs = self._library.handle(f"GetCompiledModel{side}BufferRequirements", self._compiled, index, place)
        handle = self._library.handle("CreateManagedTensorBufferFromRequirements", self._environment, ctypes.byref(kind), needs)
        buffer = TensorBuffer(self._library, handle, kind)
        self._buffers.append(buffer)
        expected = 4
        for dimension in kind.shape:
            expected *= dimension
        if buffer.n_bytes != expected:  # every tensor of ours has 4-byte values: else the structure means something else here
            why = f"{name} of shape {kind.shape} takes {buffer.n_bytes} bytes, not {expected}"
            raise EngineError(
                "this LiteRT library cannot be used", why=why, fix="install the version the extra pins: ondevice-toolkit[litert]"
            )
        return buffer

    def runner(self, signature: str, inputs: Mapping[str, TensorBuffer], outputs: Mapping[str, TensorBuffer]) -> Runner:
        """A call of one signature with these buffers, prepared once."""
        known = self.signatures[signature]
        arrays = []
        for tensors, buffers in ((known.inputs, inputs), (known.outputs, outputs)):
            if set(tensors) != set(buffers):
                raise ValueError(f"{signature} takes {sorted(tensors)}, got {sorted(buffers)}")
            for name, kind in tensors.items():
                if buffers[name].shape != kind.shape:
                    raise ValueError(f"{signature}: {name} has shape {kind.shape}, the buffer {buffers[name].shape}")
            arrays.append((ctypes.c_void_p * len(tensors))(*[buffers[name].handle.value for name in tensors]))
        return Runner(self._library, self._compiled, known.index, arrays[0], arrays[1])

    def close(self) -> None:
        """Free everything, buffers first."""
        for buffer in self._buffers:
            buffer.close()
        self._buffers = []
        order = ("CompiledModel", "Options", "Model", "Environment")
        for kind, handle in sorted(self._kinds, key=lambda pair: order.index(pair[0])):
            self._library.destroy(kind, handle)
        self._kinds = []

    def __enter__(self) -> LiteRtModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True)
class Runner:
    """One signature with its buffers bound; calling it runs the graph, with the interpreter lock released."""

    library: LiteRtLibrary
    compiled: ctypes.c_void_p
    index: int
    inputs: ctypes.Array[ctypes.c_void_p]
    outputs: ctypes.Array[ctypes.c_void_p]

    def __call__(self) -> None:
        """Run. Raises EngineError if the runtime fails."""
        self.library.call("RunCompiledModel", self.compiled, self.index, len(self.inputs), self.inputs, len(self.outputs), self.outputs)
