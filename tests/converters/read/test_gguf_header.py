import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from converters.read.gguf_header import GgufHeader, read_gguf_header
from converters.read.gguf_types import READABLE, TENSOR_TYPES
from tests.converters.read.gguf_bytes import RawGguf, array, key, tensor, text
from toolkit.errors import FormatError, ToolkitError, UnsupportedModelError


def read(tmp_path: Path, raw: RawGguf | bytes) -> GgufHeader:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.build())
    return read_gguf_header(path)


def test_a_sound_header_is_read(tmp_path: Path) -> None:
    keys = [
        key("general.architecture", 8, text("llama")),
        key("count", 4, struct.pack("<I", 7)),
        key("theta", 6, struct.pack("<f", 0.5)),
        key("flag", 7, b"\1"),
        key("words", 9, array(8, 2, text("ab") + text("語"))),
        key("numbers", 9, array(5, 3, struct.pack("<3i", -1, 0, 1))),
    ]
    header = read(tmp_path, RawGguf(keys=keys))
    assert {name: header.metadata[name] for name in ("general.architecture", "count", "theta", "flag", "words")} == {
        "general.architecture": "llama",
        "count": 7,
        "theta": 0.5,
        "flag": True,
        "words": ["ab", "語"],
    }
    np.testing.assert_array_equal(header.metadata["numbers"], [-1, 0, 1])
    assert [(t.name, t.shape, t.n_bytes) for t in header.tensors.values()] == [("a", (8,), 32), ("b", (2, 4), 32)]
    assert header.tensors["b"].offset == header.tensors["a"].offset + 32 == header.file_bytes - 32


def test_the_header_agrees_with_gguf_py_on_a_file_gguf_py_wrote(tmp_path: Path) -> None:
    import gguf

    from tests.converters.tiny_checkpoints import tiny_model, write_gguf

    path = write_gguf(tiny_model("gemma3"), tmp_path / "tiny.gguf", storage="F16")
    ours, theirs = read_gguf_header(path), gguf.GGUFReader(path)
    assert [(t.name, list(reversed(t.shape)), t.type.name, t.offset, t.n_bytes) for t in ours.tensors.values()] == [
        (t.name, list(t.shape), t.tensor_type.name, t.data_offset, t.n_bytes) for t in theirs.tensors
    ]
    for name, value in ours.metadata.items():
        expected = theirs.fields[name].contents()
        assert (value.tolist() if isinstance(value, np.ndarray) else value) == expected, name
    assert len(ours.metadata) == len(theirs.fields) - 3, "gguf-py counts version and both counts as fields"


def test_our_table_of_types_is_gguf_pys() -> None:
    import gguf
    from gguf.quants import _type_traits

    theirs = {int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    assert {number: tuple(kind) for number, kind in TENSOR_TYPES.items()} == theirs
    assert READABLE == {kind.name for kind in _type_traits} | {"F32", "F16"}


BIG = 2**63
DAMAGE: dict[str, tuple[RawGguf, str]] = {
    "magic": (RawGguf(magic=b"GGML"), "does not begin with GGUF"),
    "more tensors than bytes": (RawGguf(n_tensors=BIG), "claims 9223372036854775808 tensors"),
    "one tensor too many": (RawGguf(n_tensors=3), "run past the end|header bytes are left|tensor|name"),
    "more keys than bytes": (RawGguf(n_keys=10**9), "claims 1000000000 keys"),
    "a string longer than the file": (RawGguf(keys=[key("a", 8, struct.pack("<Q", BIG))]), "run past the end of the file"),
    "a key without a name": (RawGguf(keys=[key("", 4, bytes(4))]), "a name of 0 bytes"),
    "a key of 4 GiB": (RawGguf(keys=[struct.pack("<Q", 2**32)]), "a name of 4294967296 bytes"),
    "text that is not UTF-8": (RawGguf(keys=[key("a", 8, struct.pack("<Q", 2) + b"\xff\xfe")]), "not UTF-8"),
    "a key twice": (RawGguf(keys=[key("a", 4, bytes(4))] * 2), "key a appears twice"),
    "an unknown value type": (RawGguf(keys=[key("a", 99, bytes(8))]), "unknown type 99"),
    "an array longer than the file": (RawGguf(keys=[key("a", 9, array(4, BIG, b""))]), "claims 9223372036854775808 values in a"),
    "an array of strings longer than the file": (RawGguf(keys=[key("a", 9, array(8, 10**12, b""))]), "values in a"),
    "an array in an array": (RawGguf(keys=[key("a", 9, array(9, 1, array(9, 1, b"")))]), "nests arrays"),
    "an array of an unknown type": (RawGguf(keys=[key("a", 9, array(77, 1, bytes(8)))]), "unknown type 77"),
    "alignment zero": (RawGguf(keys=[key("general.alignment", 4, bytes(4))]), "no power of two"),
    "alignment 48": (RawGguf(keys=[key("general.alignment", 4, struct.pack("<I", 48))]), "no power of two"),
    "alignment as text": (RawGguf(keys=[key("general.alignment", 8, text("32"))]), "no power of two"),
    "a tensor twice": (RawGguf(tensors=[tensor("a", (8,)), tensor("a", (8,), offset=32)]), "tensor a appears twice"),
    "tensors on the same bytes": (RawGguf(tensors=[tensor("a", (16,)), tensor("b", (8,), offset=32)]), "a and b share bytes"),
    "a tensor past the end": (RawGguf(tensors=[tensor("a", (8,), offset=64)]), "tensor a ends at byte"),
    "an offset near 2^64": (RawGguf(tensors=[tensor("a", (8,), offset=2**64 - 32)]), "tensor a ends at byte"),
    "an offset between alignments": (RawGguf(tensors=[tensor("a", (8,), offset=4)]), "not aligned"),
    "dimensions that overflow": (RawGguf(tensors=[tensor("a", (2**32, 2**32, 2**32))]), "tensor a ends at byte"),
    "a dimension of zero": (RawGguf(tensors=[tensor("a", (0, 8))]), "cannot be stored"),
    "no dimension": (RawGguf(tensors=[tensor("a", ())]), "0 dimensions"),
    "five dimensions": (RawGguf(tensors=[tensor("a", (1,) * 5)]), "5 dimensions"),
    "2^31 dimensions": (RawGguf(tensors=[text("a") + struct.pack("<I", 2**31) + bytes(40)]), "2147483648 dimensions"),
    "an unknown tensor type": (RawGguf(tensors=[tensor("a", (8,), kind=4)]), "unknown type 4"),
    "a row that splits a block": (RawGguf(tensors=[tensor("a", (8, 4), kind=8)]), "cannot be stored as Q8_0"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_header_that_cannot_be_true_is_refused_with_its_reason(case: str, tmp_path: Path) -> None:
    raw, reason = DAMAGE[case]
    with pytest.raises(FormatError, match=reason) as error:
        read(tmp_path, raw)
    lines = str(error.value).splitlines()
    assert len(lines) == 3 and lines[0].startswith("tiny.gguf ") and lines[2].startswith("  fix: ")


@pytest.mark.parametrize("case", DAMAGE)
def test_a_lying_header_allocates_no_more_than_its_own_size(case: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(DAMAGE[case][0].build())
    tracemalloc.start()
    with pytest.raises(ToolkitError):
        read_gguf_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


@pytest.mark.parametrize(("version", "kind"), [(1, "version 1"), (4, "version 4"), (3 << 24, "big-endian")])
def test_other_versions_and_byte_orders_are_refused_by_name(version: int, kind: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=kind):
        read(tmp_path, RawGguf(version=version))


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    whole = RawGguf().build()
    read(tmp_path, whole)
    for length in range(len(whole)):
        with pytest.raises(FormatError):
            read(tmp_path, whole[:length])


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="absent.gguf cannot be read"):
        read_gguf_header(tmp_path / "absent.gguf")
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(FormatError):
        read_gguf_header(tmp_path / "folder.gguf")
