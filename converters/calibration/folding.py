"""Channel scales that cost nothing at run time: a channel is divided by a number where it is made, multiplied where it is read.

Kernels that quantize activations with one scale a token lose quiet channels beside loud ones; few-bit weights gain where a
loud channel's column is larger. A norm's weights, or the rows of the matrix before, can take the division; the columns of the
matrices that read it take the multiplication. In floating point the model stays the same.

Source: Xiao et al. 2022 (SmoothQuant), Lin et al. 2023 (AWQ); how hard to pull is measured here for each channel set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from converters.spec import ModelSpec
else:
    Tensor = Any

STRENGTHS = (0.0, 0.3, 0.5, 0.65, 0.8)
MIN_CHANNEL = 1e-3  # of the mean: a silent channel must not be blown up
HEAD_READER = "lm_head.weight"


# A matrix and the mean square of its inputs -> the matrix as it will be stored, dequantized.
Rounding = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Fold:
    """One set of channels.

    Args:
        made_by: Hugging Face name of the norm vector, or of the matrix whose rows make the channels.
        readers: Matrices whose columns read them. The head is `lm_head.weight`, tied or not.
    """

    made_by: str
    readers: tuple[str, ...]

    @property
    def is_norm(self) -> bool:
        return self.made_by.endswith("norm.weight")


def folds(spec: ModelSpec) -> tuple[Fold, ...]:
    """The channel sets of a gated decoder: what attention reads, what the MLP reads, what its last matrix reads, what the head reads."""
    before_mlp = "pre_feedforward_layernorm" if spec.norm.has_post_norms else "post_attention_layernorm"
    made = []
    for index in range(spec.n_layers):
        layer = f"model.layers.{index}"
        attention = tuple(f"{layer}.self_attn.{part}_proj.weight" for part in "qkv")
        mlp = f"{layer}.mlp"
        made += [
            Fold(f"{layer}.input_layernorm.weight", attention),
            Fold(f"{layer}.{before_mlp}.weight", (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight")),
            Fold(f"{mlp}.up_proj.weight", (f"{mlp}.down_proj.weight",)),
        ]
    return (*made, Fold("model.norm.weight", (HEAD_READER,)))


def as_int8(x: Tensor) -> Tensor:
    """Activations as LiteRT's kernels see them: 8 bits, one scale and zero point a token, (n_tokens, n_channels)."""
    low, high = x.amin(dim=-1, keepdim=True).clamp(max=0), x.amax(dim=-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 255).clamp_(min=1e-12)
    zero = (-128 - low / scale).round_()
    return ((x / scale).round_().add_(zero).clamp_(-128, 127) - zero) * scale


def choose_scales(x: Tensor, readers: Sequence[tuple[Tensor, Rounding]]) -> Tensor:
    """What each channel is divided by: of a few strengths the one whose quantized product is nearest to the exact one.

    Args:
        x: (n_tokens, n_channels) what the matrices read on the calibration texts.
        readers: Each matrix, (out_features, n_channels), with what rounds it.

    Returns:
        (n_channels,) positive; all ones where no strength beats leaving it alone.
    """
    import torch

    loudest = x.abs().amax(dim=0)
    loudest = loudest.clamp(min=float(loudest.mean()) * MIN_CHANNEL + 1e-12)
    relative = loudest / loudest.log().mean().exp()
    exact = [x @ weight.T for weight, _ in readers]
    best, chosen = torch.inf, torch.ones_like(relative)
    for strength in STRENGTHS:
        scales = relative**strength
        scaled = x / scales
        seen, importance = as_int8(scaled), scaled.square().mean(dim=0)
        error = 0.0
        for (weight, rounded), wanted in zip(readers, exact, strict=True):
            off = seen @ rounded(weight * scales, importance).T - wanted
            error += float(off.square().sum() / wanted.square().sum().clamp(min=1e-12))
        if error < best:
            best, chosen = error, scales
    return chosen
