import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from converters.read.safetensors_header import DTYPE_BYTES, StoredTensor, read_safetensors_header
from toolkit.errors import FormatError

A = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
B = {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}


def encoded(header: Any, data: bytes = bytes(32), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def read(tmp_path: Path, content: bytes) -> dict[str, StoredTensor]:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    return read_safetensors_header(path)


def test_a_sound_header_is_read_in_the_order_of_its_bytes(tmp_path: Path) -> None:
    tensors = read(tmp_path, encoded({"__metadata__": {"format": "pt"}, "b": B, "a": A}))
    assert [(t.name, t.dtype, t.shape, t.n_bytes) for t in tensors.values()] == [("a", "F32", (2, 3), 24), ("b", "BF16", (4,), 8)]
    assert tensors["b"].offset == tensors["a"].offset + 24


def test_a_file_safetensors_wrote_is_read(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    arrays = {f"t{i}": np.ones((i + 1, 3), dtype) for i, dtype in enumerate((np.float32, np.float16, np.int64, np.uint8, np.bool_))}
    save_file(arrays, tmp_path / "model.safetensors")
    tensors = read_safetensors_header(tmp_path / "model.safetensors")
    assert {name: tensors[name].shape for name in tensors} == {name: array.shape for name, array in arrays.items()}


DAMAGE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it has 0 bytes"),
    "five bytes": (b"12345", "it has 5 bytes"),
    "a length past the end": (encoded({"a": A}, length=10**6), "claims 1000000 bytes"),
    "a length of 2^63": (encoded({"a": A}, length=2**63), "claims 9223372036854775808 bytes"),
    "no JSON": (encoded(b"{{{{"), "not sound"),
    "not UTF-8": (encoded(b"\xff\xfe\xfd"), "not sound"),
    "a list": (encoded([1, 2]), "does not hold an object"),
    "nested 100,000 deep": (encoded(b"[" * 100_000), "not sound"),
    "a number of 100,000 digits": (encoded(b'{"a": ' + b"9" * 100_000 + b"}"), "not sound|not described"),
    "a tensor twice": (encoded(b'{"a": 1, "a": 2}'), "'a' appears twice"),
    "an unknown dtype": (encoded({"a": A | {"dtype": "F33"}}), "unknown dtype 'F33'"),
    "a dtype of no text": (encoded({"a": A | {"dtype": 4}}), "unknown dtype"),
    "no shape": (encoded({"a": {"dtype": "F32", "data_offsets": [0, 24]}}), "not described by"),
    "a negative size": (encoded({"a": A | {"shape": [-2, -3]}}), "has the shape"),
    "a size of true": (encoded({"a": A | {"shape": [True, 6]}}), "has the shape"),
    "a fraction": (encoded({"a": A | {"shape": [2.0, 3]}}), "has the shape"),
    "nine dimensions": (encoded({"a": A | {"shape": [1] * 8 + [6]}}), "has the shape"),
    "sizes that overflow": (encoded({"a": A | {"shape": [2**61, 2**61]}}), "needs .* bytes, not 24"),
    "a shape larger than its bytes": (encoded({"a": A | {"shape": [2, 4]}}), "needs 32 bytes, not 24"),
    "an extent that runs backwards": (encoded({"a": A | {"data_offsets": [24, 0]}}), "has the extent"),
    "an extent of one number": (encoded({"a": A | {"data_offsets": [24]}}), "has the extent"),
    "tensors on the same bytes": (encoded({"a": A, "b": B | {"data_offsets": [16, 24]}}, bytes(24)), "shares bytes"),
    "a hole": (encoded({"a": A, "b": B | {"data_offsets": [28, 36]}}, bytes(36)), "leaves 4 bytes unused"),
    "a missing end": (encoded({"a": A, "b": B}, bytes(31)), "its tensors end at byte"),
    "bytes after the end": (encoded({"a": A, "b": B}, bytes(33)), "its tensors end at byte"),
    "no tensor, but data": (encoded({}, bytes(8)), "its tensors end at byte"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_header_that_cannot_be_true_is_refused_with_its_reason(case: str, tmp_path: Path) -> None:
    content, reason = DAMAGE[case]
    with pytest.raises(FormatError, match=reason) as error:
        read(tmp_path, content)
    assert len(str(error.value).splitlines()) == 3
    assert len(str(error.value)) < 700


def test_a_header_larger_than_any_model_needs_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", 90 * 2**20))
        stream.truncate(100 * 2**20)
    tracemalloc.start()
    with pytest.raises(FormatError, match="16777216 are allowed"):
        read_safetensors_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    whole = encoded({"a": A, "b": B})
    read(tmp_path, whole)
    for length in range(len(whole)):
        with pytest.raises(FormatError):
            read(tmp_path, whole[:length])


def test_our_dtypes_are_those_safetensors_can_write() -> None:
    from safetensors import torch as safetensors_torch

    known = {code for code in safetensors_torch._TYPES if not code.startswith(("C", "F4", "F8_E8"))}
    assert set(DTYPE_BYTES) >= known
