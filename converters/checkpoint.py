"""Checkpoint: what a reader hands to every target. Facts in memory, weights on disk until asked for one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from converters.architectures import family_of
from converters.architectures.base import FloatArray
from converters.safetensors_writer import WeightDtype, write_safetensors
from converters.spec import ModelSpec
from converters.stored_blocks import StoredBlocks
from toolkit.cache import write_error
from toolkit.errors import FormatError
from toolkit.manifest import LicenseRecord, SourceRecord

TokenizerKind = Literal["bpe-byte-level", "sentencepiece"]


class Piece(NamedTuple):
    """One entry of a SentencePiece-like vocabulary; its index is the token id.

    `type` as in SentencePiece and GGUF: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
    """

    text: str
    score: float
    type: int


@dataclass(frozen=True)
class TokenizerFiles:
    """A checkpoint's tokenizer.

    Args:
        kind: Byte-level BPE (GPT-2 style), or SentencePiece-like (spaces become U+2581, bytes as a last resort).
        tokenizer_json: A Hugging Face fast tokenizer; None only if the source has pieces alone.
        pieces: A SentencePiece-like vocabulary with the source's own scores, spaces written as the source has them, where
            the source holds one (GGUF); None otherwise.
        add_bos: Whether encoding a text puts the BOS token first.
        config: What tokenizer_config.json says beside the chat template.
        added_space_prefix: SentencePiece's add_dummy_prefix.
        sentencepiece_model: tokenizer.model as the source has it, if it does.
    """

    kind: TokenizerKind
    tokenizer_json: bytes | None
    pieces: list[Piece] | None
    add_bos: bool
    config: dict[str, Any] = field(default_factory=dict)
    added_space_prefix: bool = False
    sentencepiece_model: bytes | None = None

    def require_json(self) -> bytes:
        """tokenizer.json.

        Raises:
            FormatError: There is none.
        """
        if self.tokenizer_json is None:
            raise FormatError(
                "this checkpoint has no tokenizer",
                why="tokenizer.json is missing, and nothing else says which ids its texts have",
                fix="put the tokenizer.json of the original model beside the weights",
            )
        return self.tokenizer_json


@dataclass(frozen=True)
class QuantizationInfo:
    """How the source stores weights: a name such as `Q4_1` or `BF16`, and bits per weight over all tensors."""

    name: str
    bits_per_weight: float


class TensorSource(Protocol):
    """Weights under Hugging Face names, float32, in Hugging Face layout. Nothing is kept between calls."""

    def names(self) -> tuple[str, ...]:
        """Every tensor, in writing order."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape, outermost dimension first. KeyError for an unknown name."""

    def load(self, name: str) -> FloatArray:
        """One tensor. Raises FormatError if it holds NaN or infinity, or its file changed."""

    def blocks(self, name: str) -> Iterator[FloatArray]:
        """The same values as consecutive blocks of rows, so that a large table need not be in memory whole."""

    def stored_kind(self, name: str) -> str | None:
        """The source's name for the quantized type of a tensor, such as `Q4_1` or `Q6_K`; None for floats. Reads nothing."""

    def stored(self, name: str) -> StoredBlocks | None:
        """The source's own codes, scales and offsets; None where it has none that `StoredBlocks` can hold (floats, `Q6_K`)."""


@dataclass(frozen=True)
class Checkpoint:
    """A model as read from its source: everything a target needs, nothing of a target.

    `content_hash` is a SHA-256 over the hashes of the source's files, by name: equal hashes mean equal checkpoints. `left_out`
    counts the tensors of each part of the source that is no text model (vision, audio).
    """

    name: str
    spec: ModelSpec
    source: SourceRecord
    license: LicenseRecord
    tensors: TensorSource
    tokenizer: TokenizerFiles
    chat_template: str | None
    quantization: QuantizationInfo
    content_hash: str
    left_out: Mapping[str, int] = field(default_factory=dict)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face tensor name -> shape, outermost dimension first, in writing order."""
        return {name: self.tensors.shape(name) for name in self.tensors.names()}

    def write_hf(self, directory: Path, dtype: WeightDtype = "float32", on_tensor: Callable[[str], None] | None = None) -> None:
        """Write a Hugging Face directory that transformers 4 and 5 and mlx-lm load.

        config.json is written last: a directory that has one is whole. Peak memory is a block or the largest tensor that
        is no table, whichever is larger.

        Args:
            directory: Created if missing; files of the same names are replaced.
            dtype: Storage of every weight. "float16" refuses values it cannot hold.
            on_tensor: Called with each tensor's name once it is written.

        Raises:
            FormatError: A tensor is damaged.
            BudgetError: The disk is full.
            ToolkitError: The directory cannot be written, or float16 would overflow.
        """
        write_hf_directory(directory, self.tensors, dtype, self.small_files(dtype), on_tensor)

    def small_files(self, dtype: WeightDtype) -> dict[str, bytes]:
        """What `write_hf` writes beside the weights: file name to content, config.json last."""
        spec, files = self.spec, dict[str, bytes]()
        if self.tokenizer.tokenizer_json is not None:
            files["tokenizer.json"] = self.tokenizer.tokenizer_json
        if self.tokenizer.sentencepiece_model is not None:
            files["tokenizer.model"] = self.tokenizer.sentencepiece_model
        files["tokenizer_config.json"] = as_json(self.tokenizer.config)
        if self.chat_template is not None:
            files["chat_template.jinja"] = self.chat_template.encode()
        ids = {"bos_token_id": spec.bos_token_id, "eos_token_id": list(spec.eos_token_ids) or None, "pad_token_id": spec.pad_token_id}
        files["generation_config.json"] = as_json({key: value for key, value in ids.items() if value is not None})
        config = family_of(spec.model_type).config_from_spec(spec)
        files["config.json"] = as_json(config | {"dtype": dtype, "torch_dtype": dtype})
        return files


def write_hf_directory(
    directory: Path,
    tensors: TensorSource,
    dtype: WeightDtype,
    small_files: Mapping[str, bytes],
    on_tensor: Callable[[str], None] | None,
) -> None:
    """Write weights, then the small files in their order; see `Checkpoint.write_hf`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_safetensors(directory / "model.safetensors", tensors, dtype, on_tensor)
        for name, content in small_files.items():
            (directory / name).write_bytes(content)
    except OSError as error:
        raise write_error(directory, error) from error


def as_json(data: dict[str, Any]) -> bytes:
    """The text of a small file."""
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
