from pathlib import Path

import gguf
import numpy as np
import pytest

from converters.architectures import family_of_gguf
from converters.read import gguf_tensors
from converters.read.gguf_header import read_gguf_header
from converters.read.gguf_tensors import GgufFile, GgufTensorSource
from converters.read.gguf_types import READABLE, TENSOR_TYPES
from tests.converters.tiny_checkpoints import tiny_model, write_gguf
from toolkit.errors import FormatError, UnsupportedModelError

N_ROWS, ROW_LENGTH = 37, 512


def one_tensor(path: Path, raw: np.ndarray, kind: gguf.GGMLQuantizationType) -> GgufFile:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("t", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def random_blocks(name: str) -> np.ndarray:
    """Random codes with sane scales: bytes are random, and blocks that decode to no finite number are drawn again."""
    kind = next(t for t in TENSOR_TYPES.values() if t.name == name)
    random, qtype = np.random.default_rng(7), gguf.GGMLQuantizationType[name]
    rows = np.zeros((N_ROWS, ROW_LENGTH // kind.block_size * kind.block_bytes), np.uint8)
    blocks = rows.reshape(-1, kind.block_bytes)
    for index in range(len(blocks)):
        while True:
            blocks[index] = random.integers(0, 256, kind.block_bytes, np.uint8)
            if np.isfinite(gguf.quants.dequantize(blocks[index : index + 1], qtype)).all():
                break
    return rows


@pytest.mark.parametrize("name", sorted(READABLE - {"F32", "F16"}))
@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_every_type_is_dequantized_in_blocks_as_gguf_py_does_it_whole(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, qtype = random_blocks(name), gguf.GGMLQuantizationType[name]
    file = one_tensor(tmp_path / "t.gguf", raw, qtype)
    want = gguf.quants.dequantize(raw, qtype)
    monkeypatch.setattr(gguf_tensors, "BLOCK_BYTES", 4 * ROW_LENGTH * 8)
    blocks = list(file.blocks("t"))
    assert [len(block) for block in blocks] == [8, 8, 8, 8, 5]
    np.testing.assert_array_equal(np.concatenate(blocks), want)
    np.testing.assert_array_equal(file.load("t"), want)
    assert not np.array_equal(want[::-1], want), "rows in another order would pass"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_plain_floats_are_read_exactly(dtype: type, tmp_path: Path) -> None:
    values = np.random.default_rng(3).standard_normal((5, 7)).astype(dtype)
    file = one_tensor(tmp_path / "t.gguf", values, gguf.GGMLQuantizationType.F32 if dtype is np.float32 else gguf.GGMLQuantizationType.F16)
    np.testing.assert_array_equal(file.load("t"), values.astype(np.float32))
    assert file.load("t").dtype == np.float32


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_by_name(bad: float, tmp_path: Path) -> None:
    values = np.ones((4, 8), np.float32)
    values[3, 7] = bad
    with pytest.raises(FormatError, match="t has NaN or infinite values"):
        one_tensor(tmp_path / "t.gguf", values, gguf.GGMLQuantizationType.F32).load("t")


def test_a_file_cut_after_its_header_was_read_is_noticed(tmp_path: Path) -> None:
    file = one_tensor(tmp_path / "t.gguf", np.ones((4, 8), np.float32), gguf.GGMLQuantizationType.F32)
    content = file.path.read_bytes()
    file.path.write_bytes(content[:-8])
    with pytest.raises(FormatError, match="ended while it was read"):
        file.load("t")


def source_of(path: Path) -> GgufTensorSource:
    file = GgufFile(path)
    family = family_of_gguf("llama")
    return GgufTensorSource(file, family, family.spec_from_gguf(file))


def test_blocks_and_load_agree_for_every_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_tensors, "BLOCK_BYTES", 4 * 32 * 50)
    source = source_of(write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf"))
    assert len(list(source.blocks("model.embed_tokens.weight"))) == 7
    for name in source.names():
        whole = source.load(name)
        assert whole.shape == source.shape(name)
        np.testing.assert_array_equal(np.concatenate(list(source.blocks(name))), whole)


def rewritten(path: Path, old: bytes, new: bytes) -> Path:
    content = path.read_bytes()
    assert content.count(old) == 1 and len(old) == len(new)
    path.write_bytes(content.replace(old, new))
    read_gguf_header(path)
    return path


def test_missing_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    path = rewritten(write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf"), b"blk.2.ffn_up.weight", b"blk.2.ffn_xp.weight")
    with pytest.raises(FormatError, match=r"1 missing, first blk\.2\.ffn_up\.weight; 1 unknown, first blk\.2\.ffn_xp\.weight"):
        source_of(path)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf", metadata={"llama.feed_forward_length": 64})
    with pytest.raises(FormatError, match=r"blk\.0\.ffn_gate\.weight has shape \(48, 32\), the dimensions ask for \(64, 32\)"):
        source_of(path)


def test_a_weight_stored_as_integers_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf")
    name = b"blk.0.ffn_up.weight"
    at = path.read_bytes().index(name) + len(name) + 4 + 16
    content = bytearray(path.read_bytes())
    assert content[at : at + 4] == bytes(4)
    content[at] = 26  # I32: as wide as F32
    path.write_bytes(content)
    with pytest.raises(UnsupportedModelError, match="stores weights as I32"):
        source_of(path)
