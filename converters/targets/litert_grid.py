"""The scales and offsets LiteRT's 4-bit kernels can hold, in torch, for codes chosen by calibration (see litert_weights)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from converters.targets.litert_weights import CODE_OF_ZERO, SMALLEST_SCALE

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any


def store(scales: Tensor, offsets: Tensor, is_symmetric: bool) -> tuple[Tensor, Tensor]:
    """The nearest that can be stored: scales in bfloat16; what the offsets add, c = offset + 8 scale, in int8 with one scale a row.

    Args:
        scales: (out_features, n_groups).
        offsets: The same; ignored where symmetric, they are then -8 scale.
        is_symmetric: Whether there are no offsets of their own.
    """
    import torch

    stored = scales.clamp(min=SMALLEST_SCALE).to(torch.bfloat16).float()
    if is_symmetric:
        return stored, stored * -CODE_OF_ZERO
    added = offsets + CODE_OF_ZERO * stored
    steps = (added.abs().amax(dim=1, keepdim=True) / 127).clamp_(min=1e-30)
    return stored, (added / steps).round_() * steps - CODE_OF_ZERO * stored
