"""Reader for a CTranslate2 Whisper folder: model.bin, config.json, tokenizer.json and the vocabulary.

What faster-whisper loads. Its variables map one to one onto Hugging Face's tensors, except that CTranslate2 stores the query,
key and value projections of a layer as one matrix, and gives the key a bias of zeros.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from converters.architectures.fields import Fields
from converters.architectures.whisper import MULTILINGUAL_VOCAB, tensor_shapes, tokens_from
from converters.checkpoint import QuantizationInfo
from converters.read.ctranslate2_header import Ctranslate2Header, read_ctranslate2_header
from converters.read.ctranslate2_tensors import Ctranslate2TensorSource
from converters.read.hashes import check_stated_hashes, content_hash, hash_files
from converters.read.json_file import read_json_object
from converters.read.names import checkpoint_name
from converters.read.whisper_tokenizer import read_whisper_tokenizer
from converters.speech_checkpoint import SpeechCheckpoint
from converters.whisper_spec import StackSpec, WhisperSpec
from toolkit.errors import FormatError, UnsupportedModelError
from toolkit.manifest import LicenseRecord, SourceRecord

SPEC_NAME, SPEC_REVISION = "WhisperSpec", 3
MODEL_NAME, CONFIG_NAME, TOKENIZER_NAME = "model.bin", "config.json", "tokenizer.json"
VOCABULARY_NAMES = ("vocabulary.json", "vocabulary.txt")
_MAX_CONFIG_BYTES = 2**20
_GELU = 3  # CTranslate2's number of the exact GELU
# Switches of the spec, and the only value published Whisper models have.
_FIXED = {
    "decoder/activation": _GELU,
    "decoder/alibi": 0,
    "decoder/pre_norm": 1,
    "decoder/scale_embeddings": 0,
    "decoder/start_from_zero_embedding": 0,
    "decoder/alignment_layer": -1,
    "decoder/alignment_heads": 1,
}
_SIZES = {1: "b", 2: "h", 4: "i"}


def read_ctranslate2(
    path: Path, *, name: str | None = None, source: SourceRecord | None = None, license: LicenseRecord | None = None
) -> SpeechCheckpoint:
    """Read a CTranslate2 Whisper folder; weights stay on disk.

    Args:
        path: The folder.
        name: Name of the checkpoint; the folder's name by default.
        source: Where it came from, if it was fetched; its hashes are checked.
        license: Its licence, if the fetcher knows it.

    Raises:
        FormatError: A file is missing or damaged, or files contradict each other.
        UnsupportedModelError: Another model than Whisper, another revision, or quantized weights.
    """
    header = read_ctranslate2_header(path / MODEL_NAME)
    spec, tokenizer_json = ctranslate2_spec(path, header)
    files = {file.name: file for file in model_files(path)}
    hashes = hash_files(files)
    check_stated_hashes(path, files, hashes, source)
    return SpeechCheckpoint(
        name=name or checkpoint_name(path.absolute().name),
        spec=spec,
        source=replace(source, sha256=hashes) if source else SourceRecord(uri=str(path), sha256=hashes),
        license=license or LicenseRecord(id="unknown"),
        tensors=Ctranslate2TensorSource(path / MODEL_NAME, header, tensor_shapes(spec)),
        tokenizer_json=tokenizer_json,
        quantization=ctranslate2_quantization(header),
        content_hash=content_hash(hashes),
    )


def model_files(path: Path) -> list[Path]:
    """Every file of a folder that decides what the checkpoint is."""
    names = (MODEL_NAME, CONFIG_NAME, TOKENIZER_NAME, *VOCABULARY_NAMES)
    return [path / name for name in names if (path / name).exists()]


def ctranslate2_quantization(header: Ctranslate2Header) -> QuantizationInfo:
    """The type most values are stored in, and bits per value over all of them."""
    sizes: dict[str, int] = {}
    n_bits = 0
    for variable in header.variables.values():
        if variable.small is None:
            count = 1
            for dimension in variable.shape:
                count *= dimension
            sizes[variable.dtype] = sizes.get(variable.dtype, 0) + count
            n_bits += 8 * variable.n_bytes
    commonest = max(sizes, key=lambda dtype: sizes[dtype]) if sizes else "float32"
    return QuantizationInfo(commonest, n_bits / max(1, sum(sizes.values())))


def ctranslate2_spec(path: Path, header: Ctranslate2Header) -> tuple[WhisperSpec, bytes]:
    """The spec and the tokenizer.json of a folder, after refusing what is not supported by name."""
    if header.spec_name != SPEC_NAME or header.spec_revision != SPEC_REVISION:
        raise UnsupportedModelError(
            f"{path.name} holds a CTranslate2 {header.spec_name}, revision {header.spec_revision}",
            why=f"of CTranslate2's models {SPEC_NAME} revision {SPEC_REVISION} is read",
            fix="use a Whisper model of faster-whisper, or the Hugging Face checkpoint of this one",
        )
    numbers = _Numbers(path, header)
    for variable_name, expected in _FIXED.items():
        numbers.require(variable_name, expected)
    vocab_size, width = numbers.shape("decoder/embeddings/weight", 2)
    _, n_mels, _ = numbers.shape("encoder/conv1/weight", 3)
    config = Fields(read_json_object(path / CONFIG_NAME, max_bytes=_MAX_CONFIG_BYTES), CONFIG_NAME)
    tokenizer_json, special = read_whisper_tokenizer(path, vocab_size)
    tokens = tokens_from(
        special,
        vocab_size=vocab_size,
        is_multilingual=config.boolean("is_multilingual", default=vocab_size >= MULTILINGUAL_VOCAB),
        suppressed=config.token_ids("suppress_ids", vocab_size),
        suppressed_at_start=config.token_ids("suppress_ids_begin", vocab_size),
    )
    encoder, decoder = numbers.stack("encoder", width), numbers.stack("decoder", width)
    spec = WhisperSpec(
        n_mels=n_mels,
        hidden_size=width,
        encoder=encoder,
        decoder=decoder,
        vocab_size=vocab_size,
        n_audio_positions=numbers.shape("encoder/position_encodings/encodings", 2)[0],
        max_context_length=numbers.shape("decoder/position_encodings/encodings", 2)[0],
        tokens=tokens,
        alignment_heads=_alignment_heads(config, decoder),
    )
    return spec, tokenizer_json


def _alignment_heads(config: Fields, decoder: StackSpec) -> tuple[tuple[int, int], ...]:
    pairs = config.data.get("alignment_heads") or []
    heads: list[tuple[int, int]] = []
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(index) is int for index in pair):
            raise config.fail("alignment_heads", "must be a list of [layer, head]")
        if not (0 <= pair[0] < decoder.n_layers and 0 <= pair[1] < decoder.n_heads) or len(heads) >= decoder.n_layers * decoder.n_heads:
            raise config.fail("alignment_heads", f"names a head that is not there: {pair}")
        heads.append((pair[0], pair[1]))
    return tuple(heads)


class _Numbers:
    """The numbers and shapes of a header, each checked as it is asked for."""

    def __init__(self, path: Path, header: Ctranslate2Header) -> None:
        self.path, self.header = path, header

    def fail(self, why: str) -> FormatError:
        return FormatError(f"{self.path.name}/{MODEL_NAME} is not a sound Whisper model", why=why, fix="download it again")

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        variable = self.header.variables.get(name)
        if variable is None or len(variable.shape) != rank:
            raise self.fail(f"{name} is missing" if variable is None else f"{name} has shape {variable.shape}, not {rank} dimensions")
        return variable.shape

    def number(self, name: str) -> int:
        variable = self.header.variables.get(name)
        if (
            variable is None
            or variable.small is None
            or variable.shape not in ((), (1,))
            or variable.dtype not in ("int8", "int16", "int32")
        ):
            raise self.fail(f"{name} is {'missing' if variable is None else 'no whole number'}")
        value: int = struct.unpack("<" + _SIZES[variable.n_bytes], variable.small)[0]
        return value

    def require(self, name: str, expected: int) -> None:
        value: Any = self.number(name)
        if value != expected:
            raise UnsupportedModelError(
                f"{self.path.name} is a Whisper unlike the published ones",
                why=f"{name} is {value}, known is {expected}",
                fix="use a checkpoint whose architecture is OpenAI's",
            )

    def stack(self, name: str, width: int) -> StackSpec:
        """Layers are counted, heads read. Raises FormatError if the heads do not divide the width."""
        n_layers = 0
        while f"{name}/layer_{n_layers}/ffn/linear_0/weight" in self.header.variables:
            n_layers += 1
        if n_layers == 0:
            raise self.fail(f"the {name} has no layers")
        n_heads = self.number(f"{name}/num_heads")
        if n_heads < 1 or width % n_heads:
            raise self.fail(f"{name}/num_heads {n_heads} does not divide the width {width}")
        return StackSpec(n_layers, n_heads, self.shape(f"{name}/layer_0/ffn/linear_0/weight", 2)[0])
