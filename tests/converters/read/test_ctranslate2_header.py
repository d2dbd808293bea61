import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from converters.read.ctranslate2_header import Ctranslate2Header, is_ctranslate2, read_ctranslate2_header
from tests.converters.read.test_fuzz import MUTATIONS, mutated, survives
from tests.converters.tiny_whisper import RawModel, alias, text, variable
from toolkit.errors import FormatError, ToolkitError, UnsupportedModelError

FUZZ = settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
ZEROS = np.zeros((2, 3), np.float32)


def read(tmp_path: Path, raw: RawModel | bytes) -> Ctranslate2Header:
    path = tmp_path / "model.bin"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.build())
    return read_ctranslate2_header(path)


def test_a_sound_table_is_read(tmp_path: Path) -> None:
    raw = RawModel([variable("x/weight", ZEROS), variable("n", np.int16(-7).reshape(()))], [alias("y/weight", "x/weight")])
    header = read(tmp_path, raw)
    assert (header.spec_name, header.spec_revision, header.aliases) == ("WhisperSpec", 3, {"y/weight": "x/weight"})
    weight, number = header.variables["x/weight"], header.variables["n"]
    assert (weight.shape, weight.dtype, weight.n_bytes, weight.small) == ((2, 3), "float32", 24, None)
    assert (tmp_path / "model.bin").read_bytes()[weight.offset :][:24] == ZEROS.tobytes()
    assert (number.shape, number.dtype, number.small) == ((), "int16", struct.pack("<h", -7))


DAMAGE: dict[str, tuple[RawModel | bytes, str]] = {
    "nothing": (b"", "it has 0 bytes"),
    "more variables than bytes": (RawModel(n_variables=2**32 - 1), "claims 4294967295 variables"),
    "one variable too many": (RawModel(n_variables=3), "name of|run past|claims"),
    "one variable too few": (RawModel(n_variables=1), "claims|name of"),
    "a name without its zero byte": (RawModel([struct.pack("<H", 3) + b"abc" + bytes(10)]), "zero byte"),
    "an empty name": (RawModel([struct.pack("<H", 1) + bytes(20)]), "a name of 1 bytes"),
    "a name of 64 KiB": (RawModel([struct.pack("<H", 65535) + bytes(20)]), "a name of 65535 bytes"),
    "a name that is not UTF-8": (RawModel([struct.pack("<H", 3) + b"\xff\xfe\0" + bytes(20)]), "not UTF-8"),
    "a variable twice": (RawModel([variable("a", ZEROS)] * 2, []), "variable a appears twice"),
    "nine dimensions": (RawModel([text("a") + bytes([9]) + bytes(60)]), "9 dimensions"),
    "dimensions that overflow": (RawModel([text("a") + bytes([3]) + struct.pack("<3IBI", *[2**32 - 1] * 3, 0, 4) + bytes(4)]), "claims 4"),
    "a dimension of zero": (RawModel([variable("a", np.zeros((0, 3), np.float32))]), "claims 0"),
    "an unknown type": (RawModel([variable("a", ZEROS, kind=6)]), "unknown type 6"),
    "a size that is too small": (RawModel([variable("a", ZEROS, n_bytes=20)]), "takes 24 bytes, it claims 20"),
    "values past the end": (
        RawModel([text("a") + bytes([1]) + struct.pack("<IBI", 2**30, 0, 2**32 - 4) + bytes(4)], []),
        "takes 4294967296 bytes",
    ),
    "values cut off": (RawModel([text("a") + bytes([1]) + struct.pack("<IBI", 2**20, 0, 2**22) + bytes(4)], []), "run past the end"),
    "more aliases than bytes": (RawModel(n_aliases=2**31), "claims 2147483648 aliases"),
    "an alias of nothing": (RawModel(aliases=[alias("c", "d")]), "alias c stands for d"),
    "an alias twice": (RawModel(aliases=[alias("c", "a")] * 2), "alias c appears twice"),
    "an alias of a variable's name": (RawModel(aliases=[alias("b", "a")]), "alias b appears twice"),
    "bytes behind the table": (RawModel(tail=b"\0"), "1 bytes follow"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_table_that_cannot_be_true_is_refused_with_its_reason(case: str, tmp_path: Path) -> None:
    raw, reason = DAMAGE[case]
    with pytest.raises(FormatError, match=reason) as error:
        read(tmp_path, raw)
    lines = str(error.value).splitlines()
    assert len(lines) == 3 and lines[0].startswith("model.bin ") and lines[2].startswith("  fix: ")


@pytest.mark.parametrize("case", DAMAGE)
def test_a_lying_table_allocates_no_more_than_its_own_size(case: str, tmp_path: Path) -> None:
    raw = DAMAGE[case][0]
    path = tmp_path / "model.bin"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.build())
    tracemalloc.start()
    with pytest.raises(ToolkitError):
        read_ctranslate2_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    whole = RawModel().build()
    read(tmp_path, whole)
    for length in range(len(whole)):
        with pytest.raises(FormatError):
            read(tmp_path, whole[:length])


@pytest.mark.parametrize("version", [0, 1, 5, 7, 2**31])
def test_other_versions_are_refused_by_number(version: int, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=f"version {version} of"):
        read(tmp_path, RawModel(version=version))


@FUZZ
@given(mutations=MUTATIONS)
def test_a_mutated_table_is_read_or_refused(mutations: list[tuple[float, bytes]], tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(mutated(RawModel().build(), mutations))
    survives(lambda: read_ctranslate2_header(path))


@FUZZ
@given(content=st.binary(max_size=300), start=st.sampled_from([b"", RawModel().build()[:22], RawModel().build()[:26]]))
def test_random_bytes_are_read_or_refused(content: bytes, start: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(start + content)
    survives(lambda: read_ctranslate2_header(path))


def test_a_folder_is_told_by_its_model_bin(tmp_path: Path) -> None:
    assert not is_ctranslate2(tmp_path)
    (tmp_path / "model.bin").write_bytes(RawModel().build())
    assert is_ctranslate2(tmp_path)
    for other in (b"", b"\x80\x02}q\x00", b"PK\x03\x04" + bytes(60), bytes(64)):
        (tmp_path / "model.bin").write_bytes(other)
        assert not is_ctranslate2(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="model.bin cannot be read"):
        read_ctranslate2_header(tmp_path / "model.bin")
