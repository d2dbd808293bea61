"""What a calibration found, on disk and in memory: codes, channel scales, and which matrices deserve better."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from converters.architectures.base import FloatArray
from converters.stored_blocks import StoredBlocks

FACTS_NAME = "calibrated.json"
ARRAYS_NAME = "calibrated.safetensors"
KIND = "gptq"


@dataclass
class Found:
    """By Hugging Face name.

    Args:
        codes: Matrix -> its codes, of the matrix with its channels scaled.
        scales: What makes a channel set (a norm, or a matrix by its rows) -> (n_channels,) what the channels are divided by.
        readers: What makes a channel set -> the matrices that read it, whose columns are multiplied by the same.
        promoted: Matrices to be stored as int8 instead of by their rule.
        estimates: Matrix that could be promoted -> estimated nats a token that its rule costs.
        n_tokens: Calibration tokens it was found on.
    """

    codes: dict[str, StoredBlocks] = field(default_factory=dict)
    scales: dict[str, FloatArray] = field(default_factory=dict)
    readers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    promoted: tuple[str, ...] = ()
    estimates: dict[str, float] = field(default_factory=dict)
    n_tokens: int = 0

    def write(self, folder: Path) -> None:
        """Write arrays, then facts: a folder with facts is whole."""
        from safetensors.numpy import save_file

        arrays: dict[str, Any] = {f"{name}.channels": scales for name, scales in self.scales.items()}
        for name, blocks in self.codes.items():
            arrays |= {f"{name}.codes": blocks.codes, f"{name}.scales": blocks.scales, f"{name}.offsets": blocks.offsets}
        save_file(arrays, folder / ARRAYS_NAME)
        facts = {
            "n_tokens": self.n_tokens,
            "promoted": list(self.promoted),
            "estimates": self.estimates,
            "readers": self.readers,
            "codes": {name: {"bits": blocks.bits, "group_size": blocks.group_size} for name, blocks in self.codes.items()},
        }
        (folder / FACTS_NAME).write_text(json.dumps(facts), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Found:
        """The inverse of `write`."""
        from safetensors import safe_open

        facts = json.loads((folder / FACTS_NAME).read_bytes())
        with safe_open(folder / ARRAYS_NAME, framework="numpy") as arrays:
            codes = {
                name: StoredBlocks(KIND, **grid, **{part: arrays.get_tensor(f"{name}.{part}") for part in ("codes", "scales", "offsets")})
                for name, grid in facts["codes"].items()
            }
            scales = {name: arrays.get_tensor(f"{name}.channels") for name in facts["readers"]}
        readers = {name: tuple(each) for name, each in facts["readers"].items()}
        return cls(codes, scales, readers, tuple(facts["promoted"]), facts["estimates"], facts["n_tokens"])
