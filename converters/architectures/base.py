"""The contract of a model family module, and of the GGUF view it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from converters.spec import ModelSpec

FloatArray = npt.NDArray[np.float32]


class GgufView(Protocol):
    """What a family may ask a GGUF file while it builds a spec: metadata, shapes, and small tensors."""

    @property
    def name(self) -> str:
        """The file's name, for error texts."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Every key with its value: int, float, bool, str, list of str, or a numpy array of numbers."""

    def shape(self, tensor_name: str) -> tuple[int, ...] | None:
        """A tensor's shape in numpy order (outermost first), None if the file does not hold it."""

    def load(self, tensor_name: str) -> FloatArray:
        """One tensor, dequantized, as the file lays it out."""


class Family(Protocol):
    """A model family: the only place that knows its config keys, tensor names and GGUF conventions."""

    MODEL_TYPES: tuple[str, ...]
    GGUF_ARCHITECTURES: tuple[str, ...]

    def spec_from_config(self, config: Mapping[str, Any]) -> ModelSpec:
        """Read a Hugging Face config. Raises FormatError (missing, wrong) or UnsupportedModelError (by name)."""

    def spec_from_gguf(self, gguf: GgufView) -> ModelSpec:
        """Read a GGUF header. Raises FormatError or UnsupportedModelError."""

    def config_from_spec(self, spec: ModelSpec) -> dict[str, Any]:
        """A config.json that transformers 4 and 5, and mlx-lm, read alike."""

    def tensor_shapes(self, spec: ModelSpec) -> dict[str, tuple[int, ...]]:
        """Every tensor the checkpoint must hold: Hugging Face name to shape, in writing order."""

    def gguf_names(self, spec: ModelSpec) -> dict[str, str]:
        """GGUF tensor name to Hugging Face name, for every tensor of `tensor_shapes`."""

    def from_gguf(self, gguf_name: str, array: FloatArray, spec: ModelSpec) -> tuple[str, FloatArray]:
        """Rename a tensor and undo what llama.cpp's converter did to its values."""

    def to_gguf(self, hf_name: str, array: FloatArray, spec: ModelSpec) -> FloatArray:
        """A whole tensor's values as llama.cpp expects them: the inverse of `from_gguf`. Tables are the same in both."""
