"""The two engines that open MLX bundles, mlx_lm and transformers: packed weights, packages, a BOS, a sliding window."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.toolkit.backends.conftest import resealed
from tests.toolkit.backends.test_contract import streamed
from toolkit.backends import load_backend
from toolkit.backends.base import Message, Sampling
from toolkit.backends.hf_text import HfText
from toolkit.backends.reference import dequantized
from toolkit.bundle import Bundle
from toolkit.errors import BackendUnavailableError, FormatError

PROMPT = "check the pump"


@pytest.fixture(scope="module")
def mlx_folder(targets_folder: Path) -> Path:
    pytest.importorskip("mlx_lm", reason="pip install 'ondevice-toolkit[mlx]'")
    return targets_folder


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_packed_weights_are_what_mlx_makes_of_them(bits: int, group_size: int) -> None:
    mx = pytest.importorskip("mlx.core", reason="pip install 'ondevice-toolkit[mlx]'")
    import numpy as np
    import torch

    weight = mx.array(np.random.default_rng(bits).standard_normal((300, 256)).astype(np.float32))
    packed = mx.quantize(weight, group_size=group_size, bits=bits)
    expected = np.array(mx.dequantize(*packed, group_size=group_size, bits=bits))
    found = dequantized(torch, *(torch.from_numpy(np.array(part)) for part in packed), (bits, group_size)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    wrong_form = (bits, 32 if group_size != 32 else 64)
    with pytest.raises((RuntimeError, AssertionError)):  # its must-fail twin: another group size is another matrix
        other = dequantized(torch, *(torch.from_numpy(np.array(part)) for part in packed), wrong_form).numpy()
        np.testing.assert_allclose(other, expected, rtol=0, atol=1e-6)


def test_the_reference_runs_quantized_bundles_and_mlx_says_the_same_for_as_long_as_its_sums_allow(mlx_folder: Path) -> None:
    said = {}
    for name in ("mlx", "reference"):
        engine = load_backend(name).open_engine(Bundle.open(mlx_folder / "tiny-mlx-int8"), context_length=64, threads=1)
        said[name] = streamed(engine.session(Sampling(), max_tokens=4), PROMPT)
        engine.close()
    assert said["mlx"][:4] == said["reference"][:4] != ""


@pytest.mark.parametrize(("name", "module", "extra"), [("mlx", "mlx", "mlx"), ("mlx", "mlx_lm", "mlx"), ("reference", "torch", "convert")])
def test_without_the_package_the_error_names_the_extra(
    name: str, module: str, extra: str, mlx_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendUnavailableError) as caught:
        load_backend(name).open_engine(Bundle.open(mlx_folder / "tiny-mlx-fp32"), context_length=64, threads=1)
    assert caught.value.exit_code == 5 and f"ondevice-toolkit[{extra}]" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("reference", '"bits": 8', '"bits": 4'),  # mlx_lm finds the bits out of the shapes, and is right
        ("reference", '"mode": "affine"', '"mode": "mxfp4"'),
        ("reference", '"hidden_size": 64', '"hidden_size": 32'),
        ("mlx", '"hidden_size": 64', '"hidden_size": 32'),
        ("reference", "{", "["),
        ("mlx", "{", "["),
    ],
)
def test_a_config_that_does_not_fit_the_weights_is_an_error_of_the_file(
    name: str, old: str, new: str, mlx_folder: Path, tmp_path: Path
) -> None:
    source = mlx_folder / "tiny-mlx-int8"
    config = (source / "config.json").read_text()
    assert old in config
    folder = resealed(source, tmp_path / "bundle", "config.json", config.replace(old, new).encode())
    with pytest.raises(FormatError, match="cannot open"):
        load_backend(name).open_engine(Bundle.open(folder), context_length=64, threads=1)


class FakeTokenizer:
    """Puts a BOS, id 7, before a text when it is asked to add what belongs there."""

    def __init__(self, template: Callable[[list[dict[str, str]]], str] | None = None) -> None:
        self._template = template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [7] * add_special_tokens + [ord(char) for char in text]

    def decode(self, token_ids: list[int], **_: Any) -> str:
        return "".join("<s>" if token_id == 7 else chr(token_id) for token_id in token_ids)

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        assert self._template is not None
        return self._template(messages)


def test_a_session_has_its_bos_once_whether_the_template_writes_it_or_not() -> None:
    for written in ("<s>hello", "hello"):
        text = HfText(FakeTokenizer(lambda messages, written=written: written))  # type: ignore[misc]
        assert text.start_ids == (7,) and text.render([Message("user", "x")]) == "hello"


def test_a_template_that_fails_says_why() -> None:
    def fail(messages: list[dict[str, str]]) -> str:
        raise KeyError("tools")

    with pytest.raises(ValueError, match="KeyError: 'tools'"):
        HfText(FakeTokenizer(fail)).render([Message("user", "x")])
