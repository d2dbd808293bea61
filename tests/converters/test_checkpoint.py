"""Writing a Hugging Face directory: exact in float32, rounded to nearest otherwise, whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from converters.read import read_checkpoint
from converters.safetensors_writer import to_bfloat16, write_safetensors
from tests.converters.tiny_checkpoints import save_hf, tiny_model
from toolkit.errors import BudgetError, ToolkitError, UsageError


class Tensors:
    """Tensors held in memory, served in blocks of two rows."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.arrays = arrays

    def names(self) -> tuple[str, ...]:
        return tuple(self.arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        array = self.arrays[name]
        yield from (array[i : i + 2] for i in range(0, len(array), 2))


@pytest.fixture(autouse=True)
def _own_folders(own_folders: Path) -> None:
    """File hashes are remembered below the test's own folder."""


def test_a_written_file_is_what_safetensors_reads(tmp_path: Path) -> None:
    from safetensors import safe_open

    arrays = {"a": np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32), "b": np.arange(7, dtype=np.float32)}
    written: list[str] = []
    write_safetensors(tmp_path / "w.safetensors", Tensors(**arrays), "float32", written.append)
    with safe_open(tmp_path / "w.safetensors", "np") as stored:
        assert stored.metadata() == {"format": "pt"}
        for name, array in arrays.items():
            np.testing.assert_array_equal(stored.get_tensor(name), array)
    assert written == ["a", "b"]
    assert sorted(path.name for path in tmp_path.glob("w*")) == ["w.safetensors"]


def test_bfloat16_rounds_to_nearest_even_as_torch_does() -> None:
    import torch

    edges = [0.0, -0.0, 1.0, 1.00390625, 1.01171875, 3.3895314e38, 1e-45, -1.17549435e-38, 65504.0]
    values = np.concatenate([np.array(edges, np.float32), np.random.default_rng(2).standard_normal(10_000).astype(np.float32)])
    want = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(to_bfloat16(values), want)
    truncated = (values.view(np.uint32) >> 16).astype(np.uint16)
    assert (truncated != want).mean() > 0.4, "cutting bits off would pass"


def test_float16_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "w", Tensors(a=np.array([65504.0], np.float32)), "float16")
    with pytest.raises(ToolkitError, match="a does not fit in float16\n  why: it holds 65536"):
        write_safetensors(tmp_path / "w2", Tensors(a=np.array([1.0, 65536.0], np.float32)), "float16")
    assert not list(tmp_path.glob("w2*"))


def test_a_reader_that_fails_half_way_leaves_no_file(tmp_path: Path) -> None:
    class Failing(Tensors):
        def blocks(self, name: str) -> Iterator[np.ndarray]:
            yield self.arrays[name][:2]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_safetensors(tmp_path / "w.safetensors", Failing(a=np.ones((4, 2), np.float32)), "float32")
    assert list(tmp_path.glob("w*")) == []


def test_config_json_is_written_last_and_states_dtype_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = read_checkpoint(save_hf(tiny_model("llama"), tmp_path / "source"))
    order: list[str] = []
    original = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda self, data: order.append(self.name) or original(self, data))
    checkpoint.write_hf(tmp_path / "out", dtype="float16")
    assert order[-1] == "config.json"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["dtype"], config["torch_dtype"]) == ("float16", "float16")


def test_a_full_disk_is_a_budget_error_and_leaves_no_config(tmp_path: Path) -> None:
    """A file size limit stands in for a small disk: both end in an OSError in the middle of the weights."""
    read_checkpoint(save_hf(tiny_model("llama"), tmp_path / "source"))
    script = f"""
import errno, resource, signal
from pathlib import Path
from converters.read import read_checkpoint
from toolkit.errors import ToolkitError
checkpoint = read_checkpoint({str(tmp_path / "source")!r})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    checkpoint.write_hf(Path({str(tmp_path / "out")!r}))
except ToolkitError as error:
    print(type(error).__name__, len(str(error).splitlines()))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert result.stdout.split() == ["ToolkitError", "3"], result.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_no_space_is_told_apart_from_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    from converters import checkpoint as module

    checkpoint = read_checkpoint(save_hf(tiny_model("llama"), tmp_path / "source"))
    for number, error in ((errno.ENOSPC, BudgetError), (errno.EACCES, UsageError), (errno.EIO, ToolkitError)):

        def fail(*_: object, number: int = number) -> None:
            raise OSError(number, "no")

        monkeypatch.setattr(module, "write_safetensors", fail)
        with pytest.raises(error) as raised:
            checkpoint.write_hf(tmp_path / "out")
        assert type(raised.value) is error


def test_memory_is_bounded_by_a_block_not_by_the_largest_table(tmp_path: Path) -> None:
    """A 256 MiB embedding table is written in a process that may hold far less."""
    script = f"""
from pathlib import Path
import numpy as np
from converters.read.hf_tensors import HfTensorSource, stored_tensors
from converters.safetensors_writer import write_safetensors
from toolkit.metrics import measure_peak_rss_bytes
path = Path({str(tmp_path)!r})
class Table:
    def names(self): return ("model.embed_tokens.weight",)
    def shape(self, name): return (65536, 1024)
    def blocks(self, name):
        for i in range(256):
            yield np.full((256, 1024), i, np.float32)
write_safetensors(path / "model.safetensors", Table(), "float32")
before = measure_peak_rss_bytes()
tensors = stored_tensors(path, {{"model.safetensors": path / "model.safetensors"}})
source = HfTensorSource(tensors, {{"model.embed_tokens.weight": (65536, 1024)}}, "tiny")
write_safetensors(path / "again.safetensors", source, "bfloat16")
print(measure_peak_rss_bytes() - before)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
    assert (tmp_path / "again.safetensors").stat().st_size > 2 * 65536 * 1024
    assert int(result.stdout) < 128 * 2**20
