"""SpeechCheckpoint: what a reader of a speech model hands to its targets, as `Checkpoint` is for text models.

It offers the pipeline what a `Checkpoint` does (name, hashes, licence, tensors, `write_hf`), around a `WhisperSpec`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from converters.architectures.whisper import config_from_spec, generation_config_from_spec, preprocessor_config
from converters.checkpoint import QuantizationInfo, TensorSource, as_json, write_hf_directory
from converters.safetensors_writer import WeightDtype
from converters.whisper_spec import WhisperSpec
from toolkit.manifest import LicenseRecord, SourceRecord


@dataclass(frozen=True)
class SpeechCheckpoint:
    """A speech model as read from its source. `tokenizer_json` is its tokenizer as Hugging Face spells it."""

    name: str
    spec: WhisperSpec
    source: SourceRecord
    license: LicenseRecord
    tensors: TensorSource
    tokenizer_json: bytes
    quantization: QuantizationInfo
    content_hash: str
    chat_template: str | None = None
    left_out: dict[str, int] = field(default_factory=dict)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face tensor name -> shape, outermost dimension first, in writing order."""
        return {name: self.tensors.shape(name) for name in self.tensors.names()}

    def write_hf(self, directory: Path, dtype: WeightDtype = "float32", on_tensor: Callable[[str], None] | None = None) -> None:
        """Write a Hugging Face directory that transformers loads as a WhisperForConditionalGeneration; config.json last.

        Args:
            directory: Created if missing; files of the same names are replaced.
            dtype: Storage of every weight.
            on_tensor: Called with each tensor's name once it is written.

        Raises:
            FormatError: A tensor is damaged.
            BudgetError: The disk is full.
            ToolkitError: The directory cannot be written, or float16 would overflow.
        """
        write_hf_directory(directory, self.tensors, dtype, self._small_files(dtype), on_tensor)

    def _small_files(self, dtype: WeightDtype) -> dict[str, bytes]:
        """File name to content, config.json last."""
        made = {
            "tokenizer_config.json": {"tokenizer_class": "WhisperTokenizer", "model_max_length": 1024},
            "preprocessor_config.json": preprocessor_config(self.spec),
            "generation_config.json": generation_config_from_spec(self.spec),
            "config.json": config_from_spec(self.spec) | {"dtype": dtype, "torch_dtype": dtype},
        }
        return {"tokenizer.json": self.tokenizer_json, **{name: as_json(data) for name, data in made.items()}}
