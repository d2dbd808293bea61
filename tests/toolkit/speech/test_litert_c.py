"""LiteRT's C library: found without importing its package, refused when it is none, and no byte outside a tensor is touched."""

from __future__ import annotations

import _ctypes
import array
import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tiny_speech import TinySpeech
from toolkit.errors import BackendUnavailableError, EngineError
from toolkit.speech import litert_c
from toolkit.speech.litert_c import LIBRARIES, LiteRtLibrary, TensorBuffer, installed_libraries, open_library
from toolkit.speech.litert_model import LiteRtModel


@pytest.fixture(scope="module")
def library() -> LiteRtLibrary:
    if not installed_libraries():
        pytest.skip("needs the litert extra")
    return open_library()


@pytest.fixture(scope="module")
def buffer(tiny_speech: TinySpeech, library: LiteRtLibrary) -> Iterator[TensorBuffer]:
    """Memory of one tensor: the keys of the first layer."""
    with LiteRtModel(tiny_speech.graph, library, n_threads=1) as model:
        yield model.input_buffer("decode", "past_k_0")


def test_the_first_installed_library_is_taken_and_no_package_is_imported() -> None:
    found = installed_libraries()
    assert list(found) == [name for name in LIBRARIES if name in found] and all(path.is_file() for path in found.values())
    if found:
        assert open_library().path == str(next(iter(found.values())))
    script = "import sys; from toolkit.speech.litert_c import LIBRARIES, installed_libraries; installed_libraries(); "
    subprocess.run([sys.executable, "-c", script + "assert not set(LIBRARIES) & set(sys.modules)"], check=True)


def test_a_library_that_is_not_there_is_a_missing_backend(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailableError, match="cannot be used") as caught:
        open_library(tmp_path / "libLiteRt.so")
    assert len(str(caught.value).splitlines()) == 3 and "pip install" in caught.value.fix


def test_a_library_without_the_functions_is_a_missing_backend() -> None:
    with pytest.raises(BackendUnavailableError, match="LiteRtCreateEnvironment"):
        open_library(_ctypes.__file__)


def test_where_no_package_is_installed_the_error_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litert_c, "find_spec", lambda package: None)
    with pytest.raises(BackendUnavailableError, match="none of ai_edge_litert, litert_lm is installed"):
        open_library()


def test_a_package_without_its_library_counts_as_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litert_c, "find_spec", lambda package: SimpleNamespace(submodule_search_locations=[str(tmp_path)]))
    assert installed_libraries() == {}


def test_a_status_that_is_not_zero_is_an_engine_error(library: LiteRtLibrary) -> None:
    own = LiteRtLibrary(library.path)
    own._functions = {**own._functions, "CreateOptions": lambda *arguments: 1}
    with pytest.raises(EngineError, match="LiteRtCreateOptions failed") as caught:
        own.handle("CreateOptions")
    assert "status 1 of " in caught.value.why and str(Path(library.path).parent) not in str(caught.value)
    own._functions["CreateOptions"] = lambda *arguments: 0
    assert own.handle("CreateOptions").value is None  # the twin: a status of zero passes


def test_what_is_written_is_read_at_its_place(buffer: TensorBuffer) -> None:
    buffer.clear()
    buffer.write(array.array("f", [1.5, -2.0]), at=8)
    buffer.write(b"\1\2\3\4", at=buffer.n_bytes - 4)
    assert buffer.read(16) == bytes(8) + array.array("f", [1.5, -2.0]).tobytes()
    assert buffer.read(at=buffer.n_bytes - 8) == b"\0\0\0\0\1\2\3\4"
    assert len(buffer.read()) == buffer.n_bytes
    buffer.clear()
    assert buffer.read() == bytes(buffer.n_bytes)


OUTSIDE = {"one byte past the end": (-3, 4), "before the start": (None, 4), "longer than the tensor": (0, 1)}


@pytest.mark.parametrize("case", OUTSIDE)
def test_no_byte_outside_a_tensor_is_written_or_read(case: str, buffer: TensorBuffer) -> None:
    start, length = OUTSIDE[case]
    at = -1 if start is None else buffer.n_bytes + start if start else 0
    n_bytes = buffer.n_bytes + 1 if start == 0 else length
    buffer.clear()
    with pytest.raises(ValueError, match=f"of a tensor of {buffer.n_bytes} bytes"):
        buffer.write(bytes([255]) * n_bytes, at)
    with pytest.raises(ValueError, match=f"of a tensor of {buffer.n_bytes} bytes"):
        buffer.read(n_bytes, at)
    assert buffer.read() == bytes(buffer.n_bytes), "nothing was written before it was refused"


def test_a_negative_length_is_refused(buffer: TensorBuffer) -> None:
    for n_bytes, at in ((-1, 0), (None, buffer.n_bytes + 1)):
        with pytest.raises(ValueError, match="of a tensor of"):
            buffer.read(n_bytes, at)


def test_an_array_counts_in_bytes(buffer: TensorBuffer) -> None:
    """As many values as the tensor has bytes are four times too many."""
    with pytest.raises(ValueError, match="of a tensor of"):
        buffer.write(array.array("f", bytes(4 * buffer.n_bytes)))
    buffer.write(array.array("f", bytes(buffer.n_bytes)))


def test_a_type_of_a_tensor_is_72_bytes_and_the_flag_in_its_rank_is_no_dimension() -> None:
    kind = litert_c.RankedTensorType(rank_and_flags=0x80 | 2, dimensions=(3, 5))
    assert ctypes.sizeof(kind) == 72 and kind.shape == (3, 5)
