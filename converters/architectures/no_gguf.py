"""The GGUF side of families that are not read from, and not written to, GGUF: refused by name."""

from __future__ import annotations

from toolkit.errors import UnsupportedModelError


def gguf_refusal(model: str) -> UnsupportedModelError:
    """The error for a family whose GGUF names and layouts nobody proved here."""
    return UnsupportedModelError(
        f"{model} is not read from or written to GGUF",
        why="its per-layer tables and shared layers have llama.cpp names and layouts that are not checked here",
        fix="use the Hugging Face checkpoint, and --to litert or mlx",
    )
