"""The two real GGUF files: their tokenizers against transformers' own conversion, and the memory it takes to write them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from converters.read import read_checkpoint

pytestmark = pytest.mark.real

TEXTS = [
    "Hello world",
    "  two   three    four     ",
    "a" + " " * 31 + "b",
    "I'LL DON'T we're they'd",
    "日本語のテスト、これはペンです。吾輩は猫である。",
    "😀👩‍👩‍👧‍👦🇯🇵 emoji",
    "def f(x):\n\treturn x ** 2\n\n\n\t\t# deep\r\n",
    "12345 + 678 = 13023",
    "ﬁ Å e\u0301 — “quotes” … 100%",
    "\x01\x7f \ufffd \u200b \u2581",
    "<|im_start|>user\nHi<|im_end|>\n<start_of_turn>user\nHi<end_of_turn>\n<bos><unused3>",
    "<table><tr>  <td>1</td></tr></table>",
    "",
    " ",
    "x" * 300,
]


def transformers_tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def check_ids(path: Path, **options: Any) -> Tokenizer:
    ours = Tokenizer.from_buffer(read_checkpoint(path, **options).tokenizer.tokenizer_json)
    theirs = transformers_tokenizer(path)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
    return ours


def test_smollm2_ids_are_those_of_transformers(smollm2_gguf: Path) -> None:
    ours = check_ids(smollm2_gguf)
    assert ours.encode("<|im_start|>").ids == [1]
    # Where we differ on purpose: SmolLM splits every numeral off, also ½ (as llama.cpp does); transformers' GGUF conversion
    # keeps `Ġ` with it, because it does not read tokenizer.ggml.pre.
    assert ours.encode(" ½").tokens[0] == "Ġ"


def test_gemma_ids_are_those_of_transformers(gemma_gguf: Path) -> None:
    ours = check_ids(gemma_gguf, accept_license="gemma")
    assert ours.encode("<start_of_turn>").ids == [2, 105]
    # Where we differ on purpose: runs longer than the longest space piece (31) are cut as SentencePiece cuts them.
    assert [len(token) for token in ours.encode("a" + " " * 40 + "b").tokens[2:4]] == [31, 9]


@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_writing_a_directory_stays_far_below_the_size_of_the_weights(
    name: str, smollm2_gguf: Path, gemma_gguf: Path, tmp_path: Path
) -> None:
    """Gemma's embedding table alone takes 640 MiB in float32; peak RSS was measured at 320 MiB (SmolLM2: 125 MiB)."""
    path = {"smollm2": smollm2_gguf, "gemma": gemma_gguf}[name]
    script = (
        "from pathlib import Path; from toolkit.metrics import measure_peak_rss_bytes; from converters.read import read_checkpoint; "
        f"read_checkpoint({str(path)!r}, accept_license='gemma').write_hf(Path({str(tmp_path)!r}) / 'out'); "
        "print(measure_peak_rss_bytes())"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    written = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert written > 500e6
    assert int(result.stdout) < {"smollm2": 250, "gemma": 500}[name] * 2**20
