"""What a written GGUF file holds, read from its header."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from converters.read.gguf_header import read_gguf_header
from converters.targets.gguf_plan import ROPE_FACTORS


@dataclass(frozen=True)
class StoredWeights:
    """Bits of all weight tensors, codes and scales, and how many weights each tensor type stores. RoPE factors are no weights."""

    weight_bits: int
    weights_by_type: dict[str, int]


def measure_file(path: Path) -> StoredWeights:
    """Add up the tensors of a file.

    Raises:
        FormatError: Its header is not sound.
    """
    weight_bits, by_type = 0, dict[str, int]()
    for tensor in read_gguf_header(path).tensors.values():
        if tensor.name != ROPE_FACTORS:
            weight_bits += 8 * tensor.n_bytes
            by_type[tensor.type.name] = by_type.get(tensor.type.name, 0) + math.prod(tensor.shape)
    return StoredWeights(weight_bits, by_type)
