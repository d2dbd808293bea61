"""Coverage-guided fuzzing of the readers' parsers. Not part of the test suite: needs `pip install atheris`.

    python tests/fuzz/fuzz_readers.py [-max_total_time=60] [CORPUS_DIR]

Anything but an answer or a `ToolkitError` stops it and writes the input to `crash-...`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports(include=["converters", "toolkit"]):
    from converters.architectures import family_of_gguf
    from converters.read.gguf import gguf_spec
    from converters.read.gguf_tensors import GgufFile, check_tensor_set
    from converters.read.gguf_tokenizer import tokenizer_from_gguf
    from converters.read.hf import hf_config
    from converters.read.safetensors_header import read_safetensors_header
    from toolkit.errors import ToolkitError

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-readers-"))


def read_gguf_parts(path: Path) -> None:
    """Header, spec, tensor set and tokenizer of a GGUF file."""
    file = GgufFile(path)
    tokenizer_from_gguf(file.metadata, file.name, 1000)
    spec = gguf_spec(file)
    check_tensor_set(file, family_of_gguf(str(file.metadata["general.architecture"])), spec)


def one_input(data: bytes) -> None:
    """The first byte chooses the parser, the rest is the file."""
    choice = data[:1]
    name, action = {
        b"g": ("x.gguf", read_gguf_parts),
        b"s": ("x.safetensors", read_safetensors_header),
    }.get(choice, ("config.json", lambda path: hf_config(path.parent)))
    path = FOLDER / name
    path.write_bytes(data[1:])
    try:
        action(path)
    except ToolkitError as error:
        assert len(str(error).splitlines()) == 3


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
