"""LiteRT's C library through ctypes: a plain .tflite runs without numpy, on a phone as on a desktop.

The functions are exported by `libLiteRt` (ai-edge-litert) and by `liblitert-lm` (litert-lm-api) alike. Neither library states
a version, so the layout of the one structure that crosses the border is proven on every model that is opened.

The native parser dies on a damaged file: whoever opens a model must have checked its hash.
"""

from __future__ import annotations

import array
import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from toolkit.errors import BackendUnavailableError, EngineError

# package -> library inside it, in the order they are looked for; both give bit-identical answers
LIBRARIES = {"ai_edge_litert": "libLiteRt", "litert_lm": "liblitert-lm"}
MAX_RANK = 8
_SUFFIXES = {"darwin": ".dylib", "win32": ".dll"}
_WRITE, _READ = 1, 0
_Handle = ctypes.c_void_p
_Size = ctypes.c_size_t


class RankedTensorType(ctypes.Structure):
    """Element type and layout of a tensor, as the C library hands it out: 72 bytes."""

    _fields_ = [
        ("element_type", ctypes.c_int32),
        ("rank_and_flags", ctypes.c_uint32),
        ("dimensions", ctypes.c_int32 * MAX_RANK),
        ("strides", ctypes.c_uint32 * MAX_RANK),
    ]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.dimensions[: self.rank_and_flags & 0x7F])


assert ctypes.sizeof(RankedTensorType) == 72

_P = ctypes.POINTER
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# function -> argument types; every one returns a status, 0 for success
_SIGNATURES: dict[str, list[object]] = {
    "CreateEnvironment": [ctypes.c_int, _Handle, _P(_Handle)],
    "CreateModelFromFile": [_Handle, ctypes.c_char_p, _P(_Handle)],
    "CreateOptions": [_P(_Handle)],
    "SetOptionsHardwareAccelerators": [_Handle, ctypes.c_int],
    "CreateOpaqueOptions": [ctypes.c_char_p, ctypes.c_void_p, _DELETER, _P(_Handle)],
    "AddOpaqueOptions": [_Handle, _Handle],
    "CreateCompiledModel": [_Handle, _Handle, _Handle, _P(_Handle)],
    "GetNumModelSignatures": [_Handle, _P(_Size)],
    "GetModelSignature": [_Handle, _Size, _P(_Handle)],
    "GetSignatureKey": [_Handle, _P(ctypes.c_char_p)],
    "GetNumSignatureInputs": [_Handle, _P(_Size)],
    "GetNumSignatureOutputs": [_Handle, _P(_Size)],
    "GetSignatureInputName": [_Handle, _Size, _P(ctypes.c_char_p)],
    "GetSignatureOutputName": [_Handle, _Size, _P(ctypes.c_char_p)],
    "GetSignatureInputTensorByIndex": [_Handle, _Size, _P(_Handle)],
    "GetSignatureOutputTensorByIndex": [_Handle, _Size, _P(_Handle)],
    "GetRankedTensorType": [_Handle, _P(RankedTensorType)],
    "GetCompiledModelInputBufferRequirements": [_Handle, _Size, _Size, _P(_Handle)],
    "GetCompiledModelOutputBufferRequirements": [_Handle, _Size, _Size, _P(_Handle)],
    "CreateManagedTensorBufferFromRequirements": [_Handle, _P(RankedTensorType), _Handle, _P(_Handle)],
    "GetTensorBufferPackedSize": [_Handle, _P(_Size)],
    "LockTensorBuffer": [_Handle, _P(ctypes.c_void_p), ctypes.c_int],
    "UnlockTensorBuffer": [_Handle],
    "RunCompiledModel": [_Handle, _Size, _Size, _P(_Handle), _Size, _P(_Handle)],
}
_DESTROYERS = ("TensorBuffer", "CompiledModel", "OpaqueOptions", "Options", "Model", "Environment")


class LiteRtLibrary:
    """The loaded library; `call` raises what a status says."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(path)  # its symbols stay private, so both libraries can live in one process
            self._functions = {name: getattr(self._library, f"LiteRt{name}") for name in _SIGNATURES}
            self._destroyers = {name: getattr(self._library, f"LiteRtDestroy{name}") for name in _DESTROYERS}
        except (OSError, AttributeError) as error:
            raise BackendUnavailableError(
                "the LiteRT library cannot be used", why=f"{path}: {error}", fix="pip install 'ondevice-toolkit[litert]'"
            ) from error
        for name, function in self._functions.items():
            function.argtypes, function.restype = _SIGNATURES[name], ctypes.c_int
        for destroy in self._destroyers.values():
            destroy.argtypes, destroy.restype = [_Handle], None

    def call(self, name: str, *arguments: object) -> None:
        """Call `LiteRt<name>`. Raises EngineError if its status is not 0."""
        status: int = self._functions[name](*arguments)
        if status:
            raise EngineError(
                f"LiteRt{name} failed",
                why=f"status {status} of {Path(self.path).name}",
                fix="check the bundle (toolkit verify), or convert it again",
            )

    def handle(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """Call a function whose last argument receives a handle; returns the handle."""
        made = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(made))
        return made

    def number(self, name: str, *arguments: object) -> int:
        """Call a function whose last argument receives a size."""
        size = ctypes.c_size_t()
        self.call(name, *arguments, ctypes.byref(size))
        return size.value

    def text(self, name: str, *arguments: object) -> str:
        """Call a function whose last argument receives a text."""
        value = ctypes.c_char_p()
        self.call(name, *arguments, ctypes.byref(value))
        return (value.value or b"").decode("utf-8", "replace")

    def destroy(self, kind: str, handle: ctypes.c_void_p) -> None:
        """Destroy what a handle stands for, and empty the handle: the library refuses an empty one, but follows a stale one."""
        self._destroyers[kind](handle)
        handle.value = None


def open_library(path: str | os.PathLike[str] | None = None) -> LiteRtLibrary:
    """The library at `path`, or the first of `LIBRARIES` that is installed.

    Raises:
        BackendUnavailableError: None is installed, or it lacks a function.
    """
    if path is not None:
        return LiteRtLibrary(os.fspath(path))
    for found in installed_libraries().values():
        return LiteRtLibrary(str(found))
    raise BackendUnavailableError(
        "speech on LiteRT needs its C library",
        why=f"none of {', '.join(LIBRARIES)} is installed",
        fix="pip install 'ondevice-toolkit[litert]'",
    )


def installed_libraries() -> dict[str, Path]:
    """Package -> library file, for each package that is installed; nothing is imported."""
    suffix = _SUFFIXES.get(sys.platform, ".so")
    found: dict[str, Path] = {}
    for package, stem in LIBRARIES.items():
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            path = Path(folder, stem + suffix)
            if path.is_file():
                found[package] = path
    return found


class TensorBuffer:
    """Memory of one tensor, owned by the runtime. Every access is checked against its size."""

    def __init__(self, library: LiteRtLibrary, handle: ctypes.c_void_p, kind: RankedTensorType) -> None:
        self._library, self.handle, self.shape = library, handle, kind.shape
        try:
            self.n_bytes = library.number("GetTensorBufferPackedSize", handle)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def locked(self, *, write: bool) -> Iterator[int]:
        """The memory's address while it is locked."""
        address = ctypes.c_void_p()
        self._library.call("LockTensorBuffer", self.handle, ctypes.byref(address), _WRITE if write else _READ)
        try:
            yield address.value or 0
        finally:
            self._library.call("UnlockTensorBuffer", self.handle)

    def write(self, data: bytes | array.array[float] | array.array[int], at: int = 0) -> None:
        """Copy bytes into the buffer from byte `at` on. Raises ValueError if they do not fit."""
        n_bytes = len(data) if isinstance(data, bytes) else len(data) * data.itemsize
        self._check(at, n_bytes)
        with self.locked(write=True) as address:
            ctypes.memmove(address + at, data if isinstance(data, bytes) else data.buffer_info()[0], n_bytes)

    def read(self, n_bytes: int | None = None, at: int = 0) -> bytes:
        """`n_bytes` from byte `at` on, all by default. Raises ValueError if there are fewer."""
        count = self.n_bytes - at if n_bytes is None else n_bytes
        self._check(at, count)
        with self.locked(write=False) as address:
            return ctypes.string_at(address + at, count)

    def clear(self) -> None:
        """Fill with zeros: the runtime hands memory out as it comes."""
        with self.locked(write=True) as address:
            ctypes.memset(address, 0, self.n_bytes)

    def _check(self, at: int, n_bytes: int) -> None:
        if at < 0 or n_bytes < 0 or at + n_bytes > self.n_bytes:
            raise ValueError(f"bytes {at} to {at + n_bytes} of a tensor of {self.n_bytes} bytes")

    def close(self) -> None:
        self._library.destroy("TensorBuffer", self.handle)
