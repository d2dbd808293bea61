"""What litert-torch's Gemma 3n needs before it is traced."""

from __future__ import annotations

from typing import Any


def restore_cutoffs(model: Any) -> None:
    """Work out again how many standard deviations above the mean each sparse gate cuts off.

    litert-torch keeps that number in a buffer that no checkpoint holds. transformers makes modules without memory and then
    fills in what it knows: this buffer is none of that, and holds whatever lay there. Any other model is left as it is.
    """
    import torch

    for module in model.modules():
        if hasattr(module, "_std_multiplier"):
            module._std_multiplier = torch.special.ndtri(torch.tensor(module.activation_sparsity, dtype=torch.float32))
