"""Mutated files: whatever a byte is changed to, a reader answers with a checkpoint or a `ToolkitError`, and in bounded memory.

Values of weights may change without notice (only hashes can tell); structure may not.
"""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from converters.read import read_checkpoint
from converters.read.gguf_header import read_gguf_header
from converters.read.inspect import inspect_source
from converters.read.safetensors_header import read_safetensors_header
from tests.converters.read.gguf_bytes import RawGguf
from tests.converters.tiny_checkpoints import save_hf, tiny_model, write_gguf
from toolkit.errors import ToolkitError

# The tiny files have some 150 KB; a reader that believed a lying count would ask for gigabytes.
MEMORY_BOUND = 32 * 2**20
FUZZ = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# (where, what): a position as a share of the file, and bytes that lie in interesting ways.
LIES = st.sampled_from(
    [
        b"\0",
        b"\xff",
        b"\x7f",
        b"\x80",
        b"\xff" * 8,
        b"\0" * 8,
        b"\xff\xff\xff\x7f",
        b'"',
        b"}",
        b"[",
        b"-1",
        b"1e999",
        b"\x01\0\0\0\0\0\0\x80",
    ]
)
MUTATION = st.tuples(st.floats(0, 1, exclude_max=True), LIES | st.binary(min_size=1, max_size=16))
MUTATIONS = st.lists(MUTATION, min_size=1, max_size=4)


def mutated(content: bytes, mutations: list[tuple[float, bytes]], limit: int | None = None) -> bytes:
    """`content` with bytes overwritten; positions lie in its first `limit` bytes, where the structure is."""
    raw = bytearray(content)
    for share, lie in mutations:
        at = int(share * min(len(raw), limit or len(raw)))
        raw[at : at + len(lie)] = lie
    return bytes(raw)


def survives(action: Callable[[], Any]) -> str:
    """Run it: the outcome's type, after proving that it was an answer or a `ToolkitError`, within the memory bound."""
    tracemalloc.start()
    try:
        action()
        outcome = "answered"
    except ToolkitError as error:
        assert len(str(error).splitlines()) == 3 and error.fix, error
        outcome = type(error).__name__
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MEMORY_BOUND, f"{peak} bytes were allocated for a tiny file"
    return outcome


def load_all(path: Path) -> None:
    tensors = read_checkpoint(path).tensors
    for name in tensors.names():
        tensors.load(name)


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tiny_model("llama"), tmp_path_factory.mktemp("fuzz") / "tiny.gguf", storage="F16")


@pytest.fixture(scope="module")
def hf_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_hf(tiny_model("gemma3"), tmp_path_factory.mktemp("fuzz") / "tiny")


@FUZZ
@given(mutations=MUTATIONS)
def test_a_mutated_gguf_file_is_answered_or_refused(mutations: list[tuple[float, bytes]], gguf_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "mutated.gguf"
    path.write_bytes(mutated(gguf_file.read_bytes(), mutations, limit=read_gguf_header(gguf_file).tensors["token_embd.weight"].offset))
    survives(lambda: load_all(path))
    survives(lambda: inspect_source(str(path)))


@settings(FUZZ, max_examples=400)
@given(mutations=MUTATIONS)
def test_a_mutated_gguf_header_is_read_or_refused(mutations: list[tuple[float, bytes]], tmp_path: Path) -> None:
    path = tmp_path / "mutated.gguf"
    path.write_bytes(mutated(RawGguf().build(), mutations))
    survives(lambda: read_gguf_header(path))


@settings(FUZZ, max_examples=300)
@given(content=st.binary(max_size=400), magic=st.sampled_from([b"", b"GGUF\3\0\0\0", b"GGUF\2\0\0\0"]))
def test_random_bytes_are_refused(content: bytes, magic: bytes, tmp_path: Path) -> None:
    path = tmp_path / "random.gguf"
    path.write_bytes(magic + content)
    survives(lambda: read_gguf_header(path))
    survives(lambda: read_safetensors_header(path))


@settings(FUZZ, max_examples=300)
@given(mutations=MUTATIONS)
def test_a_mutated_safetensors_header_is_read_or_refused(mutations: list[tuple[float, bytes]], hf_folder: Path, tmp_path: Path) -> None:
    content = (hf_folder / "model.safetensors").read_bytes()
    path = tmp_path / "mutated.safetensors"
    path.write_bytes(mutated(content, mutations, limit=8 + int.from_bytes(content[:8], "little")))
    survives(lambda: read_safetensors_header(path))


@settings(FUZZ, max_examples=120)
@given(name=st.sampled_from(["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]), mutations=MUTATIONS)
def test_a_mutated_small_file_is_answered_or_refused(
    name: str, mutations: list[tuple[float, bytes]], hf_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(hf_folder, folder, dirs_exist_ok=True)
    (folder / name).write_bytes(mutated((hf_folder / name).read_bytes(), mutations))
    survives(lambda: load_all(folder))
    survives(lambda: inspect_source(str(folder)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(FUZZ, max_examples=300)
@given(data=st.data())
def test_any_value_under_any_key_of_a_config_is_read_or_refused(data: st.DataObject, hf_folder: Path, tmp_path: Path) -> None:
    import json

    from converters.read.hf import hf_config

    config = json.loads((hf_folder / "config.json").read_text())
    key = data.draw(st.sampled_from(sorted(config)))
    config[key] = data.draw(JSON)
    (tmp_path / "config.json").write_text(json.dumps(config))
    survives(lambda: hf_config(tmp_path).spec.n_parameters)


def test_the_fuzzer_reaches_both_outcomes(gguf_file: Path, tmp_path: Path) -> None:
    """The twin: mutations are neither all harmless nor all fatal, and an untyped error would be seen."""
    path = tmp_path / "mutated.gguf"
    content = gguf_file.read_bytes()
    path.write_bytes(mutated(content, [(0.99, b"\0")]))
    assert survives(lambda: load_all(path)) == "answered"
    path.write_bytes(mutated(content, [(0.0, b"\0")]))
    assert survives(lambda: read_gguf_header(path)) == "FormatError"
    with pytest.raises(ZeroDivisionError):
        survives(lambda: 1 // 0)
    with pytest.raises(AssertionError, match="bytes were allocated"):
        survives(lambda: bytes(2 * MEMORY_BOUND))
