"""GGUF's blocks taken apart: scale * code + offset is what gguf-py's own dequantization gives, value by value."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converters.read import read_checkpoint
from converters.read.gguf import read_gguf
from converters.read.gguf_blocks import Blocks, unpack_blocks
from converters.read.gguf_tensors import GgufFile
from converters.read.gguf_types import TENSOR_TYPES
from converters.stored_blocks import BLOCK_BITS, GROUP_SIZE, StoredBlocks
from tests.converters.tiny_checkpoints import save_hf, tiny_model, write_gguf
from toolkit.errors import FormatError

TYPES = {kind.name: kind for kind in TENSOR_TYPES.values()}
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2)}


def random_blocks(kind: str, seed: int, n_blocks: int = 40) -> bytes:
    """Blocks whose every byte is random, but for finite float16 numbers where the format has them."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (n_blocks, TYPES[kind].block_bytes)).astype(np.uint8)
    for at in HALVES[kind]:
        blocks[:, at : at + 2] = random.standard_normal(n_blocks).astype("<f2").view(np.uint8).reshape(-1, 2)
    return blocks.tobytes()


def values(blocks: Blocks) -> np.ndarray:
    return blocks.codes.astype(np.float32) * blocks.scales[:, None] + blocks.offsets[:, None]


def by_gguf_py(raw: bytes, kind: str) -> np.ndarray:
    return gguf.quants.dequantize(np.frombuffer(raw, np.uint8)[None], gguf.GGMLQuantizationType[kind]).reshape(-1, GROUP_SIZE)


@pytest.mark.parametrize("kind", BLOCK_BITS)
@given(seed=st.integers(0, 2**32 - 1))
def test_blocks_of_random_bytes_mean_what_gguf_py_says(kind: str, seed: int) -> None:
    raw = random_blocks(kind, seed)
    blocks = unpack_blocks(raw, kind, TYPES[kind].block_bytes)
    assert blocks.codes.dtype == np.uint8 and int(blocks.codes.max()) < 2 ** BLOCK_BITS[kind]
    np.testing.assert_array_equal(values(blocks), by_gguf_py(raw, kind))


@pytest.mark.parametrize("kind", BLOCK_BITS)
def test_nibbles_in_another_order_would_be_seen(kind: str) -> None:
    raw = random_blocks(kind, 1)
    blocks = unpack_blocks(raw, kind, TYPES[kind].block_bytes)
    interleaved = blocks.codes.reshape(-1, 2, 16).swapaxes(1, 2).reshape(-1, GROUP_SIZE)
    assert not np.array_equal(values(blocks._replace(codes=interleaved)), by_gguf_py(raw, kind))
    assert not np.array_equal(values(blocks._replace(offsets=-blocks.offsets)), by_gguf_py(raw, kind))


# One family with permuted rows, one without, one that changes norms; widths are multiples of 32, and of 256 for Q4_K.
WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 32}


@pytest.mark.parametrize("kind", [kind for kind in BLOCK_BITS if kind != "Q4_K"])  # gguf-py does not write Q4_K
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_stored_blocks_are_the_weights_a_reader_loads(family: str, kind: str, tmp_path: Path) -> None:
    tensors = read_checkpoint(write_gguf(tiny_model(family, **WIDE), tmp_path / "tiny.gguf", storage=kind)).tensors
    n_matrices = 0
    for name in tensors.names():
        stored = tensors.stored(name)
        is_matrix = len(tensors.shape(name)) == 2
        assert (stored is not None) == is_matrix and tensors.stored_kind(name) == (kind if is_matrix else None)
        if stored is not None:
            assert (stored.kind, stored.bits, stored.group_size) == (kind, BLOCK_BITS[kind], GROUP_SIZE)
            assert stored.codes.shape == tensors.shape(name)
            np.testing.assert_array_equal(stored.dequantized(), tensors.load(name))
            n_matrices += 1
    assert n_matrices >= 29


def test_rows_in_the_files_own_order_would_be_seen(tmp_path: Path) -> None:
    """The twin of the test above: llama.cpp permutes the rows of q, and scales must move with their codes."""
    tensors = read_checkpoint(write_gguf(tiny_model("llama", **WIDE), tmp_path / "tiny.gguf", storage="Q4_1")).tensors
    name = "model.layers.0.self_attn.q_proj.weight"
    stored = tensors.stored(name)
    raw = tensors.file.load_blocks("blk.0.attn_q.weight")  # type: ignore[attr-defined]
    assert isinstance(stored, StoredBlocks)
    for changed in ({"codes": raw.codes.reshape(stored.codes.shape)}, {"scales": raw.scales.reshape(stored.scales.shape)}):
        assert not np.array_equal(replace(stored, **changed).dequantized(), tensors.load(name))


def test_floats_have_no_blocks_but_are_told_from_types_that_cannot_be_kept(tmp_path: Path) -> None:
    model = tiny_model("llama", **WIDE)
    for source in (write_gguf(model, tmp_path / "f16.gguf", storage="F16"), save_hf(model, tmp_path / "hf")):
        tensors = read_checkpoint(source).tensors
        assert {tensors.stored_kind(name) for name in tensors.names()} == {None}
        assert tensors.stored("model.embed_tokens.weight") is None


def test_a_scale_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama", **WIDE), tmp_path / "tiny.gguf", storage="Q8_0")
    tensors = read_checkpoint(path).tensors
    tensor = tensors.file.header.tensors["blk.0.ffn_up.weight"]  # type: ignore[attr-defined]
    content = bytearray(path.read_bytes())
    content[tensor.offset : tensor.offset + 2] = np.array([np.nan], "<f2").tobytes()
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"blk\.0\.ffn_up\.weight has NaN or infinite values"):
        tensors.stored("model.layers.0.mlp.up_proj.weight")


def weights_by_kind(path: Path) -> dict[str, int]:
    """How many weights of a file each kind holds, every one of them compared with what the reader loads."""
    tensors = read_gguf(path).tensors
    counts: Counter[str] = Counter()
    for name in tensors.names():
        if (stored := tensors.stored(name)) is not None:
            assert np.array_equal(stored.dequantized(), tensors.load(name)), name
            counts[stored.kind] += stored.codes.size
    return dict(counts)


@pytest.mark.real
def test_every_block_of_smollm2_means_what_the_reader_loads(smollm2_gguf: Path) -> None:
    assert weights_by_kind(smollm2_gguf) == {"Q4_1": 106_168_320, "Q8_0": 28_311_552}


@pytest.mark.real
def test_every_block_of_gemma_means_what_the_reader_loads(gemma_gguf: Path) -> None:
    counts = weights_by_kind(gemma_gguf)
    assert set(counts) == {"Q4_K", "Q5_0", "Q8_0"}
    kinds = Counter(kind for tensor in GgufFile(gemma_gguf).header.tensors.values() if (kind := tensor.type.name) not in counts)
    assert kinds == {"F32": 109, "Q6_K": 9}, "what has no blocks is told by its name, not passed over"
