"""What memory the checkpoint's own answers take while they are worked out: part of what every target estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from converters.spec import ModelSpec

# Peak RSS of `converters.reference.compute_reference`: PyTorch and transformers, the weights in float32, a block of logits.
BASE_BYTES = 500 * 2**20
BLOCK_BYTES_PER_ENTRY = 4 * 128


def reference_peak_bytes(spec: ModelSpec) -> int:
    """Peak RSS of the process in which transformers answers the verification texts."""
    return BASE_BYTES + 4 * spec.n_parameters + BLOCK_BYTES_PER_ENTRY * spec.vocab_size
